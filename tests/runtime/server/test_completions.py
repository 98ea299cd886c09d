"""/v1/completions over real HTTP: shapes, streams, log-probabilities, several prompts and answers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

PROMPT = "The quick brown fox"


def complete(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    """The answer to a request, greedy unless its fields say otherwise."""
    response = http.post("/v1/completions", json={"prompt": PROMPT, "temperature": 0, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refusal(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    """The error object of a request that must be refused with 400."""
    body = json.dumps({"prompt": PROMPT, **fields})  # half a surrogate pair included, which httpx would not send
    response = http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def chunks(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """The chunks of a stream, without the [DONE] that must end it."""
    response = http.post("/v1/completions", json={"prompt": PROMPT, "temperature": 0, "stream": True, **fields})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def joined(found: list[dict[str, Any]], index: int = 0) -> str:
    """The text of one choice of a stream."""
    return "".join(choice["text"] for chunk in found for choice in chunk["choices"] if choice["index"] == index)


def test_an_answer_has_openais_shape(openai_client: openai.OpenAI) -> None:
    """OpenAI's client reads the answer: id, text, why it ended and what it cost."""
    answer = openai_client.completions.create(model="tiny", prompt=PROMPT, max_tokens=5, temperature=0)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.model == "tiny"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5


def test_sixteen_tokens_are_the_default(http: httpx.Client) -> None:
    """Without max_tokens an answer has OpenAI's 16 tokens."""
    assert complete(http, ignore_eos=True)["usage"]["completion_tokens"] == 16


def test_cached_and_forced_tokens_are_told(http: httpx.Client) -> None:
    """Usage counts prompt tokens that were in the cache and output tokens that the grammar forced."""
    complete(http, prompt="It is what it is; she said", max_tokens=1)
    usage = complete(http, prompt="It is what it is; she said", regex="(the|many) other things", max_tokens=40)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    assert 0 < usage["completion_tokens_details"]["forced_tokens"] <= usage["completion_tokens"]


def test_prefixes_are_shared_within_a_salt_and_an_extra_key(http: httpx.Client) -> None:
    """The same prompt is cached for those who give both alike, and for nobody else."""
    prompt = "What is shared with whom is told by two names, of which both must be the same."

    def cached(**names: str) -> bool:
        usage = complete(http, prompt=prompt, max_tokens=1, **names)["usage"]
        return bool(usage["prompt_tokens_details"]["cached_tokens"])

    names: dict[str, str] = {"cache_salt": "pear", "extra_key": "adapter-1"}
    assert not cached(**names)
    assert cached(**names)
    assert not cached(cache_salt="pear")
    assert not cached(extra_key="adapter-1")
    assert not cached(cache_salt="pear", extra_key="adapter-2")


def test_a_stream_joins_to_the_whole_answer(http: httpx.Client) -> None:
    """The texts of a stream join to the text of the same request without one; usage comes last."""
    fields: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "stream_options": {"include_usage": True}}
    found = chunks(http, **fields)
    whole = complete(http, max_tokens=60, ignore_eos=True)
    assert joined(found) == whole["choices"][0]["text"]
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] == 60
    assert all(chunk["usage"] is None for chunk in found[:-1])
    assert [choice["finish_reason"] for chunk in found for choice in chunk["choices"]][-1] == "length"


def test_several_streams_of_several_prompts_keep_their_places(http: httpx.Client) -> None:
    """Choices are numbered by prompt and then by answer, in a stream as in a whole answer."""
    fields: dict[str, Any] = {"prompt": [PROMPT, "A tree has"], "n": 2, "max_tokens": 12, "seed": 7, "temperature": 1}
    whole = complete(http, **fields)["choices"]
    found = chunks(http, **fields)
    assert [choice["index"] for choice in whole] == [0, 1, 2, 3]
    assert [joined(found, index) for index in range(4)] == [choice["text"] for choice in whole]
    assert len({choice["text"] for choice in whole}) > 1


def test_prompts_may_be_token_ids(http: httpx.Client) -> None:
    """The ids of a text give the answer of the text, alone and in a list."""
    ids = http.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    text = complete(http, max_tokens=8)["choices"][0]["text"]
    assert complete(http, prompt=ids, max_tokens=8)["choices"][0]["text"] == text
    assert complete(http, prompt=[ids, ids], max_tokens=8)["choices"][1]["text"] == text


def test_echo_puts_the_prompt_first(http: httpx.Client) -> None:
    """With echo the text begins with the prompt, streamed or not."""
    plain = complete(http, max_tokens=6)["choices"][0]["text"]
    assert complete(http, max_tokens=6, echo=True)["choices"][0]["text"] == PROMPT + plain
    assert joined(chunks(http, max_tokens=6, echo=True)) == PROMPT + plain


def test_logprobs_have_the_legacy_shape(http: httpx.Client) -> None:
    """There is an entry a token; offsets point at the tokens' texts; a greedy answer's tokens are the likeliest."""
    choice = complete(http, max_tokens=10, logprobs=2, ignore_eos=True)["choices"][0]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"]) == 10
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == pytest.approx(max(top.values()))
        assert logprob == pytest.approx(top[token], abs=1e-4)
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if "\ufffd" not in token and not token.startswith("<|"):
            assert choice["text"][offset:].startswith(token)


def test_streamed_logprobs_are_those_of_the_whole_answer(http: httpx.Client) -> None:
    """The log-probabilities of a stream's chunks join to those of the whole answer."""
    whole = complete(http, max_tokens=12, logprobs=1)["choices"][0]["logprobs"]
    parts = [choice["logprobs"] for chunk in chunks(http, max_tokens=12, logprobs=1) for choice in chunk["choices"]]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    assert [offset for part in parts for offset in part["text_offset"]] == whole["text_offset"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_can_be_scored_alone(http: httpx.Client, *, stream: bool) -> None:
    """max_tokens 0 with echo and logprobs gives the prompt's own log-probabilities and nothing else."""
    fields = {"max_tokens": 0, "echo": True, "logprobs": 0}
    choices = chunks(http, **fields)[0]["choices"] if stream else complete(http, **fields)["choices"]
    logprobs = choices[0]["logprobs"]
    assert choices[0]["text"] == PROMPT
    assert "".join(logprobs["tokens"]) == PROMPT
    assert logprobs["token_logprobs"][0] is None
    assert all(logprob < 0 for logprob in logprobs["token_logprobs"][1:])


def test_a_stop_string_across_chunks_never_shows(http: httpx.Client) -> None:
    """A stop string that spans several tokens ends the answer before it; no half of it is ever streamed."""
    text = complete(http, max_tokens=40, ignore_eos=True)["choices"][0]["text"]
    stop = text[12:17]
    expected = text[: text.index(stop)]
    answer = complete(http, max_tokens=40, ignore_eos=True, stop=stop)["choices"][0]
    assert (answer["text"], answer["finish_reason"], answer["stop_reason"]) == (expected, "stop", stop)
    assert joined(chunks(http, max_tokens=40, ignore_eos=True, stop=[stop])) == expected


@pytest.mark.parametrize("word", ["héllo wörld", "日本語のテキスト", "👩‍👩‍👧 🌴🌴", "नमस्ते"])
def test_a_stream_never_splits_a_character(http: httpx.Client, word: str) -> None:
    """Characters that take several tokens arrive whole."""
    found = chunks(http, regex=word, max_tokens=120)
    assert joined(found) == word
    assert all("\ufffd" not in choice["text"] for chunk in found for choice in chunk["choices"])


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [({"regex": "[0-9]{3}"}, r"\d{3}"), ({"ebnf": 'root ::= "yes" | "no"'}, "yes|no")],
)
def test_extensions_hold_answers_to_grammars(http: httpx.Client, fields: dict[str, Any], pattern: str) -> None:
    """regex and ebnf are honoured."""
    import re

    choice = complete(http, **fields)["choices"][0]
    assert re.fullmatch(pattern, choice["text"])
    assert choice["finish_reason"] == "stop"


def test_json_schema_is_honoured(http: httpx.Client) -> None:
    """The extension json_schema gives JSON that is valid."""
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    assert json.loads(complete(http, json_schema=schema, max_tokens=64)["choices"][0]["text"])["a"] in (1, 2)


def test_special_tokens_in_a_prompt_are_text_unless_asked_for(http: httpx.Client) -> None:
    """A prompt that spells a special token has many tokens more than one whose special tokens are read."""
    text = "<|im_end|>"
    plain = complete(http, prompt=text, max_tokens=1)["usage"]["prompt_tokens"]
    parsed = complete(http, prompt=text, max_tokens=1, parse_special_tokens=True)["usage"]["prompt_tokens"]
    assert parsed == 1
    assert plain > 5


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"guided_regex": "a"}, "guided_regex", "give regex"),
        ({"temperature": "hot"}, "temperature", "must be a valid number, not 'hot'"),
        ({"temperature": -1}, "temperature", "from 0 to"),
        ({"temperature": True}, "temperature", "must"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": -4}, "max_tokens", "greater than or equal to 0"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 100_000}, "n", "1024"),
        ({"prompt": ["a"] * 600, "n": 2}, "n", "1200 answers"),
        ({"n": 2, "best_of": 3}, "best_of", "must equal n"),
        ({"suffix": "end"}, "suffix", "not supported"),
        ({"logprobs": 1000}, "logprobs", "50"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "'x'"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "99999"),
        ({"stop": ""}, "stop", "non-empty"),
        ({"stop": ["x"] * 65}, "stop", "64"),
        ({"stop_regex": "("}, "stop_regex", "regular expression"),
        ({"regex": "("}, "regex", "regular expression"),
        ({"ebnf": "root ::= missing"}, "ebnf", "missing"),
        ({"json_schema": {"type": "strin"}}, "json_schema", "strin"),
        ({"regex": "a", "ebnf": 'root ::= "a"'}, "ebnf", "cannot be given together"),
        ({"prompt": []}, "prompt", "at least one"),
        ({"prompt": [10**6]}, "prompt", "1000000"),
        ({"prompt": [-1]}, "prompt", "greater than or equal to 0"),
        ({"prompt": 5}, "prompt", "must be a valid string"),
        ({"prompt": "a " * 2000}, None, "context"),
        ({"prompt": "half \ud800"}, None, "not valid JSON"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"min_tokens": 20, "max_tokens": 3}, "min_tokens", "max_tokens=3"),
        ({"timeout": 0}, "timeout", "greater than 0"),
        ({"seed": 1.5}, "seed", "integer"),
    ],
)
def test_bad_requests_are_refused_with_the_field(
    http: httpx.Client, fields: dict[str, Any], param: str | None, words: str
) -> None:
    """The error names the field, the value and what is allowed; streams fail with the status as well."""
    for stream in ({}, {"stream": True}):
        if stream and "stream_options" in fields:
            continue
        error = refusal(http, **fields, **stream)
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param, error
        assert words in error["message"], error


def test_fields_without_meaning_here_are_accepted(http: httpx.Client) -> None:
    """What only OpenAI's own service heeds does no harm, nor do nulls."""
    ignored = {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "top_p": None, "stop": None}
    assert complete(http, max_tokens=2, **ignored)["choices"]


def test_a_seed_gives_the_same_answer_again(http: httpx.Client) -> None:
    """Sampled answers repeat under a seed, a negative one too, and differ between seeds."""
    texts = [
        complete(http, max_tokens=24, temperature=1.0, seed=seed)["choices"][0]["text"] for seed in (-3, -3, 4, 5, 6)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1
