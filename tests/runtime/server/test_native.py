"""`/generate` on a real server."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import httpx
import pytest
from tests.native_server import ServedEngine, wait_until_empty

from palmette.runtime.engine import Engine
from palmette.runtime.server.native import EXAMPLE

LONG = {"max_tokens": 400, "ignore_eos": True}


@pytest.fixture
def client(tiny_server: ServedEngine) -> Any:
    """A client of the server around the tiny engine."""
    with httpx.Client(base_url=tiny_server.url, timeout=60) as client:
        yield client


def generate(client: httpx.Client, **body: Any) -> Any:
    """What `/generate` answers, which must be a success."""
    answer = client.post("/generate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(client: httpx.Client, **body: Any) -> tuple[int, str | None, str]:
    """Status, parameter and message of what `/generate` refuses."""
    answer = client.post("/generate", json=body)
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["message"]


def streamed(text: str) -> list[Any]:
    """The server-sent events of a stream, which must have ended."""
    *events, done, nothing = text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_one_prompt_is_answered_by_an_object(client: httpx.Client) -> None:
    """The answer has the fields of the example on the OpenAPI page, and counts that agree with each other."""
    answer = generate(client, text="The old river", sampling_params={"max_tokens": 5, "temperature": 0}, rid="one")
    assert set(answer) == set(EXAMPLE)
    assert (answer["rid"], answer["index"], answer["finish_reason"]) == ("one", 0, "length")
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"]) == 5
    timings = answer["timings"]
    assert set(timings) == set(EXAMPLE["timings"])  # type: ignore[call-overload]
    assert 0 <= timings["queue_s"] <= timings["first_token_s"] <= timings["elapsed_s"] <= timings["total_s"]
    assert timings["last_step"] - timings["first_step"] in (4, 5)  # five tokens; a step that overlaps the last
    assert timings["batch_size"] == 1


def test_ids_and_text_are_the_same_prompt(client: httpx.Client, tiny_engine: Engine) -> None:
    """Greedy answers to a text and to its token ids are equal, and the second finds the first in the cache."""
    text = "The old river walks over seven castles"
    token_ids = tiny_engine.tokenizer.encode_text(text)
    options = {"max_tokens": 6, "temperature": 0}
    first = generate(client, text=text, sampling_params=options)
    again = generate(client, input_ids=token_ids, sampling_params=options)
    assert first["token_ids"] == again["token_ids"]
    assert again["usage"]["prompt_tokens"] == len(token_ids)
    assert again["usage"]["cached_tokens"] >= len(token_ids) - 1


def test_salts_keep_prefixes_apart(client: httpx.Client) -> None:
    """What one salt has computed is found under that salt, and under no other."""
    counts = [
        generate(client, text="A secret that nobody else knows", sampling_params={"max_tokens": 1}, cache_salt=salt)
        for salt in ("red", "blue", "red")
    ]
    assert [count["usage"]["cached_tokens"] > 0 for count in counts] == [False, False, True]


def test_lists_are_answered_in_order(client: httpx.Client) -> None:
    """A list of prompts, even of one, gives a list of results, each with all its answers."""
    answers = generate(client, text=["One", "Two", "Three"], sampling_params={"max_tokens": 3, "ignore_eos": True}, n=2)
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    assert all(len(answer["answers"]) == 2 and answer["answers"][0]["text"] == answer["text"] for answer in answers)
    assert all(answer["usage"]["completion_tokens"] == 6 for answer in answers)
    assert len(generate(client, input_ids=[[3, 4]], sampling_params={"max_tokens": 1})) == 1


def test_streams_join_to_the_result(client: httpx.Client) -> None:
    """The pieces of every answer to every prompt join to its text; each prompt ends in its result, once."""
    body = {"text": ["One", "Two"], "n": 2, "stream": True, "sampling_params": {"max_tokens": 8, "seed": 4}}
    events = streamed(client.post("/generate", json=body).text)
    results = {event["index"]: event for event in events if "usage" in event}
    assert sorted(results) == [0, 1]
    for place, result in results.items():
        for number, answer in enumerate(result["answers"]):
            pieces = [event for event in events if (event["index"], event.get("answer")) == (place, number)]
            assert "".join(piece["delta"] for piece in pieces) == answer["text"]


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ({"regex": "[ab]{3}"}, "[ab]{3}"),
        ({"choices": ["red", "blue"]}, "red|blue"),
        ({"ebnf": 'root ::= "x" [0-9]'}, "x[0-9]"),
        ({"lark": 'start: "y" /[0-9]/'}, "y[0-9]"),
        ({"json_schema": {"enum": ["x", "y"]}}, '"x"|"y"'),
        ({"json_schema": '{"const": true}'}, "true"),
        (
            {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": "tag"}}},
            "tag",
        ),
    ],
)
def test_answers_are_held_to_a_grammar(client: httpx.Client, grammar: dict[str, Any], pattern: str) -> None:
    """Each kind of grammar holds the answer, and forced tokens are counted."""
    answer = generate(client, text="Say: ", sampling_params={"max_tokens": 20}, **grammar)
    assert re.fullmatch(pattern, answer["text"])
    assert answer["usage"]["forced_tokens"] <= answer["usage"]["completion_tokens"]


def test_logprobs_come_where_they_are_asked_for(client: httpx.Client) -> None:
    """One entry a token with its likeliest others, and none where nothing was asked."""
    options = {
        "max_tokens": 3,
        "logprobs": 2,
        "prompt_logprobs": 0,
        "return_text_in_logprobs": True,
        "ignore_eos": True,
    }
    answer = generate(client, text="The tree", sampling_params=options)
    assert [len(entry["top"]) for entry in answer["logprobs"]] == [2, 2, 2]
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert "logprobs" not in generate(client, text="The tree", sampling_params={"max_tokens": 1})


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({}, "text", "either as text or as input_ids"),
        ({"text": "a", "input_ids": [1]}, "text", "either as text or as input_ids"),
        ({"text": 7}, "text", "not 7"),
        ({"text": []}, "text", "at least 1"),
        ({"text": "a", "prompt": "b"}, "prompt", "no field 'prompt'"),
        ({"text": "a", "sampling_params": {"max_token": 3}}, "sampling_params.max_token", "did you mean 'max_tokens'"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature", "from 0 to"),
        ({"text": "a", "sampling_params": {"top_k": "3"}}, "sampling_params.top_k", "not '3'"),
        ({"text": "a", "sampling_params": {"max_tokens": True}}, "sampling_params.max_tokens", "not True"),
        ({"text": "a", "sampling_params": {"stop_token_ids": [99999]}}, "stop_token_ids", "99999"),
        ({"text": "a", "regex": "("}, "regex", "missing ')'"),
        ({"text": "a", "json_schema": "{"}, "json_schema", "not JSON"),
        ({"text": "a", "ebnf": "root ::= nothing"}, "ebnf", "nothing"),
        ({"text": "a", "regex": "a", "ebnf": "b"}, "ebnf", "one grammar"),
        ({"input_ids": [1, 99999]}, "input_ids", "no token 99999"),
        ({"input_ids": [1, -1]}, "input_ids", "no token -1"),
        ({"input_ids": [[]]}, "input_ids[0]", "at least 1"),
        ({"text": "a", "n": 0}, "n", "greater than or equal to 1"),
        ({"text": "a", "n": 10_000}, "n", "less than or equal to 128"),
        ({"text": ["a"] * 100, "n": 100}, "n", "more than 4096"),
        ({"text": "a", "rid": ""}, "rid", "at least 1"),
        ({"text": "a", "priority": 1 << 40}, "priority", "less than"),
        ({"text": "a", "timeout_s": 0}, "timeout_s", "greater than 0"),
        ({"text": "word " * 3000}, None, "context"),
    ],
)
def test_bad_requests_are_the_caller_s_mistake(
    client: httpx.Client, body: dict[str, Any], param: str | None, said: str
) -> None:
    """400 with the field, what was wrong with it and what is allowed."""
    status, named, message = refusal(client, **body)
    assert (status, named) == (400, param), message
    assert said in message


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b'"text"', b'{"text": "\\ud800"}', b'{"text": NaN}'])
def test_bodies_that_are_no_request(client: httpx.Client, body: bytes) -> None:
    """What is not a JSON object of the right form is refused with an error object, whatever it is."""
    answer = client.post("/generate", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400)
    assert answer.status_code == 200 or answer.json()["error"]["message"]


def test_abort_is_exact(client: httpx.Client, tiny_engine: Engine) -> None:
    """The request of the id ends with an error, no other does; its id is refused while it runs, and unknown after."""
    body = {"text": "Long", "stream": True, "sampling_params": LONG}
    with client.stream("POST", "/generate", json={**body, "rid": "to-abort"}) as answer:
        lines = answer.iter_lines()
        next(lines)
        status, param, message = refusal(client, text="other", rid="to-abort")
        assert (status, param) == (409, "rid"), message
        assert client.post("/abort", json={"rid": "to-abor"}).status_code == 404
        assert client.post("/abort", json={"rid": "to-abort"}).status_code == 200
        rest = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert "aborted" in rest[-1]["error"]["message"]
    assert client.post("/abort", json={"rid": "to-abort"}).status_code == 404
    wait_until_empty(tiny_engine)


def test_a_client_that_goes_ends_its_request(client: httpx.Client, tiny_engine: Engine) -> None:
    """Closing the connection of a stream, or of a request that waits, gives the pages back."""
    body = {"text": ["Long"] * 3, "sampling_params": LONG}
    with client.stream("POST", "/generate", json={**body, "stream": True}) as answer:
        next(answer.iter_lines())
    with pytest.raises(httpx.ReadTimeout):
        client.post("/generate", json=body, timeout=httpx.Timeout(60, read=0.05))
    wait_until_empty(tiny_engine)


def test_a_request_has_its_time(client: httpx.Client, tiny_engine: Engine) -> None:
    """One that has not ended after timeout_s fails with 504."""
    status, _, message = refusal(client, text=["Long"] * 8, sampling_params=LONG, timeout_s=0.05)
    assert status == 504
    assert "had not ended" in message  # the server may notice first, or the scheduler
    wait_until_empty(tiny_engine)


def test_many_at_once(client: httpx.Client) -> None:
    """Requests from many threads each get their own answer."""
    found: dict[int, str] = {}

    def ask(place: int) -> None:
        found[place] = generate(client, text=f"{place}", regex=f"{place}!", sampling_params={"max_tokens": 9})["text"]

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {place: f"{place}!" for place in range(16)}
