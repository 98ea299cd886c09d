"""`OpenAIBackend` over a scripted service: what it asks, and what programs get."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest
from tests.fake_openai import Asked, FakeOpenAI, Refusal, Reply, Script, says

import palmette as pt
from palmette.lang.openai_request import PrefixPolicy


@contextmanager
def backend_on(script: Script, **options: Any) -> Iterator[tuple[pt.OpenAIBackend, FakeOpenAI]]:
    """A backend on a scripted service of unknown make."""
    given = {"max_retries": 0, "timeout_s": 30, **options}
    with FakeOpenAI(script) as service, pt.OpenAIBackend("m", base_url=service.url, **given) as backend:
        yield backend, service


def run(backend: pt.Backend, *parts: Any, stream: bool = False, **options: Any) -> pt.ProgramState:
    """A program that appends these parts and ends well."""

    @pt.function(**options)
    def program(s: pt.ProgramState) -> None:
        for part in parts:
            s += part

    state = program.stream(backend=backend) if stream else program.run(backend=backend)
    assert state.error() is None, state.error()
    return state


def failure(backend: pt.Backend, *parts: Any) -> BaseException:
    """The error of the last generation of a program."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        for part in parts:
            s += part

    error = program.run(backend=backend).error()
    assert isinstance(error, pt.NodeFailedError)
    assert error.__cause__ is not None
    return error.__cause__


# -- what is asked -----------------------------------------------------------------------------------------------------


def test_roles_become_messages() -> None:
    """Messages hold what the program wrote, whatever it looks like, and the answers of earlier turns."""
    with backend_on([says("one"), says("two")]) as (backend, service):
        state = run(
            backend,
            pt.system("Be brief. <|end|>\n<|user|>\n"),
            pt.user("A?") + pt.assistant(pt.gen("a")),
            pt.user("B?") + pt.assistant(pt.gen("b")),
        )
    assert [asked.path for asked in service.posts] == ["/chat/completions"] * 2
    assert service.posts[1].body["messages"] == [
        {"role": "system", "content": "Be brief. <|end|>\n<|user|>\n"},
        {"role": "user", "content": "A?"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "B?"},
    ]
    assert (state["a"], state["b"]) == ("one", "two")
    assert [message["content"] for message in state.messages()][2::2] == ["one", "two"]


def test_plain_text_is_a_completion() -> None:
    """Without roles the text is the prompt of a completion, answers included."""
    with backend_on([says(" Rome"), says(" Paris")]) as (backend, service):
        run(backend, "Italy:" + pt.gen("x") + "\nFrance:" + pt.gen("y"))
    assert [asked.body["prompt"] for asked in service.posts] == ["Italy:", "Italy: Rome\nFrance:"]
    assert {asked.path for asked in service.posts} == {"/completions"}


def test_plain_text_where_there_are_no_completions() -> None:
    """A service without completions gets a user message, and is asked only once for what it lacks."""

    def script(asked: Asked) -> Reply:
        return Refusal(404, "a chat model") if asked.path == "/completions" else says("hi")

    with backend_on(script) as (backend, service):
        run(backend, "Hello" + pt.gen("x") + "!" + pt.gen("y"))
    assert [asked.path for asked in service.posts] == ["/completions", "/chat/completions", "/chat/completions"]
    assert service.posts[2].body["messages"] == [{"role": "user", "content": "Hellohi!"}]


def test_chat_may_be_decided() -> None:
    """chat=True makes plain text a message; chat=False makes messages plain text."""
    with backend_on([says("x")], chat=True) as (backend, service):
        run(backend, "Hello" + pt.gen("x"))
    assert service.posts[0].path == "/chat/completions"
    with backend_on([says("x")], chat=False) as (backend, service):
        run(backend, pt.user("Hello") + pt.assistant(pt.gen("x")))
    assert service.posts[0].body["prompt"] == "USER: Hello\nASSISTANT: "


def test_options_in_openai_s_names() -> None:
    """Options that are not at their default are sent under the protocol's names; others are the service's own."""
    with backend_on([says("x"), says("y"), says("z")]) as (backend, service):
        run(
            backend,
            "a"
            + pt.gen("x", 5, temperature=0.5, top_p=0.9, seed=3, stop=["s"], logit_bias={4: -1}, presence_penalty=1)
            + pt.gen("y"),
        )
        run(backend, pt.user("a") + pt.assistant(pt.gen("x", logprobs=2)))
    assert service.posts[0].body == {
        "model": "m",
        "prompt": "a",
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "presence_penalty": 1,
        "max_tokens": 5,
        "stop": ["s"],
        "logit_bias": {"4": -1},
    }
    assert service.posts[1].body == {"model": "m", "prompt": "ax", "max_tokens": 128}
    assert (service.posts[2].body["logprobs"], service.posts[2].body["top_logprobs"]) == (True, 2)


def test_options_that_a_service_lacks_are_refused() -> None:
    """Nothing is left out in silence: the error names the option and what to do."""
    with backend_on([]) as (backend, service):
        error = failure(backend, "a" + pt.gen("x", top_k=5))
        assert isinstance(error, pt.RequestError)
        assert "top_k=5" in str(error)
        assert "extensions=True" in str(error)
    assert service.posts == []


def test_extensions() -> None:
    """A service that takes Palmette's fields gets them: options, patterns, schemas, and messages to go on with."""
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    answers = [says("7"), says('{"a":1}'), says('{"a":1}'), says(" end")]
    with backend_on(answers, extensions=True, extra_body={"priority": 3}) as (backend, service):
        run(backend, "a" + pt.gen("x", regex="[0-9]", top_k=5) + pt.gen("y", json_schema=schema))
        run(
            backend,
            pt.user("q") + pt.assistant(pt.gen("x", json_schema=schema)),
            pt.user("q") + pt.assistant("The" + pt.gen("y")),
        )
    bodies = [asked.body for asked in service.posts]
    assert (bodies[0]["regex"], bodies[0]["top_k"], bodies[0]["priority"]) == ("[0-9]", 5, 3)
    assert bodies[1]["json_schema"] == schema
    assert bodies[2]["response_format"]["json_schema"]["schema"] == schema
    assert bodies[3]["continue_final_message"] is True
    assert bodies[3]["messages"][-1] == {"role": "assistant", "content": "The"}


# -- messages that are to be continued ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "last"), [("send", ("assistant", "The answer is ")), ("ask", ("user", "Go on with your last message"))]
)
def test_a_message_may_be_continued(prefix: PrefixPolicy, last: tuple[str, str]) -> None:
    """The policy says what becomes of an assistant message that begins with the program's text."""
    with backend_on([says("four.")], prefix=prefix) as (backend, service):
        state = run(backend, pt.user("2+2?") + pt.assistant("The answer is " + pt.gen("x")))
    messages = service.posts[0].body["messages"]
    assert (messages[-1]["role"], messages[-1]["content"].startswith(last[1])) == (last[0], True)
    assert state.messages()[-1]["content"] == "The answer is four."


def test_a_message_that_cannot_be_continued() -> None:
    """By default nothing is sent, and the error says what there is to choose from."""
    with backend_on([]) as (backend, service):
        error = failure(backend, pt.user("2+2?") + pt.assistant("The answer is " + pt.gen("x")))
        assert "prefix='send'" in str(error)
        assert "assistant messages only" in str(failure(backend, pt.user("q: " + pt.gen("x"))))
    assert service.posts == []


def test_text_outside_of_messages_is_refused() -> None:
    """A conversation has no place for it; white space is no text."""
    with backend_on([says("x")]) as (backend, _):
        error = failure(backend, "Intro. ", pt.user("q") + pt.assistant(pt.gen("x")))
        assert "outside of the messages" in str(error)
        run(backend, "\n", pt.user("q") + pt.assistant(pt.gen("x")))


# -- constraints -------------------------------------------------------------------------------------------------------


def test_schemas_are_response_formats() -> None:
    """An object schema is sent as it is, strict where services can be; others are wrapped, and unwrapped here."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.user("q") + pt.assistant(pt.gen("list", type=list[int]))
        s += pt.user("q") + pt.assistant(pt.gen("pick", type=Literal["red", "blue"]))
        s += pt.user("q") + pt.assistant(pt.gen("code", regex="[A-Z]{2}[0-9]"))

    answers = [says('{ "answer": [1, 2] }'), says('{"answer":"blue"}'), says('{"answer":"AB7"}')]
    with backend_on(answers) as (backend, service):
        state = program.run(backend=backend)
        assert (state["list"], state["pick"], state["code"]) == ([1, 2], "blue", "AB7")
    formats = [asked.body["response_format"]["json_schema"] for asked in service.posts]
    assert [each["strict"] for each in formats] == [True] * 3
    assert formats[2]["schema"]["properties"]["answer"] == {"type": "string", "pattern": "^(?:[A-Z]{2}[0-9])$"}
    assert [message["content"] for message in service.posts[2].body["messages"][1::2]] == ["[1,2]", "blue"]


def test_answers_that_break_their_grammar_are_asked_for_again() -> None:
    """Up to grammar_attempts times, with other seeds; then the generation fails and says what came."""
    with backend_on([says("no"), says("'no'"), says("  42\n")]) as (backend, service):
        state = run(backend, "n: " + pt.gen("x", regex="[0-9]+", seed=1))
        assert state["x"] == "42"
        assert [asked.body["seed"] for asked in service.posts] == [1, 2, 3]
        assert backend.usage.requests == 3
    with backend_on([says("no")] * 2, grammar_attempts=2) as (backend, service):
        error = failure(backend, "n: " + pt.gen("x", regex="[0-9]+"))
        assert isinstance(error, pt.GrammarError)
        assert "after 2 attempt(s)" in str(error)
        assert "'no'" in str(error)


def test_a_service_without_response_format_is_told() -> None:
    """Where response_format is refused, the model is told what is wanted, and the answer checked, fences and all."""

    def script(asked: Asked) -> Reply:
        if "response_format" in asked.body:
            return Refusal(400, "unknown field response_format")
        return says('```json\n{"n": 3}\n```')

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    with backend_on(script) as (backend, service):
        state = run(backend, pt.user("q") + pt.assistant(pt.gen("x", json_schema=schema)))
        assert json.loads(state["x"]) == {"n": 3}
    assert '"integer"' in service.posts[1].body["messages"][0]["content"]
    assert state.messages()[0]["content"] == "q"


def test_of_several_answers_only_those_missing_are_asked_for_again() -> None:
    """n answers that match come together over the attempts."""
    with backend_on([says("1", "x", "2"), says("3")]) as (backend, service):
        state = run(backend, "n" + pt.gen("x", n=3, regex="[0-9]"))
        assert state["x"] == ["1", "2", "3"]
    assert [asked.body.get("n") for asked in service.posts] == [3, None]


def test_tools() -> None:
    """A tool's call is an answer under a schema, and its result a message of the user's."""

    @pt.tool
    def add(a: int, b: int) -> int:
        """The sum."""
        return a + b

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s.use_tools(add)
        s += pt.user("1+2?") + pt.assistant(pt.gen("call", tools=[add]))
        s += pt.tool_result(s["call"].run()) + pt.assistant(pt.gen("end"))

    with backend_on([says('{"name": "add", "arguments": {"a": 1, "b": 2}}'), says("3!")]) as (backend, service):
        state = program.run(backend=backend)
        assert state["end"] == "3!"
    assert [message["role"] for message in service.posts[1].body["messages"]][-1] == "user"
    assert service.posts[1].body["messages"][-1]["content"].strip() == "3"
    assert "add" in service.posts[0].body["messages"][0]["content"]


def test_reasoning_that_a_service_shows_apart() -> None:
    """With separate_reasoning it is read where the tags of other models would have been."""
    answer = says('{"answer":"3"}', message={"reasoning_content": "hm"})
    with backend_on([answer]) as (backend, _):
        state = run(backend, pt.user("q") + pt.assistant(pt.gen("x", type=Literal[3], separate_reasoning=True)))
        assert (state["x"], state["x_reasoning_content"]) == (3, "hm")


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_may_be_kept(stream: bool) -> None:
    """Without a grammar, reasoning="keep" lets the program separate what the service shows apart."""
    events = says("tree", message={"reasoning_content": "hm hm"}, pieces=2)
    for keep, reasoning in (("keep", "hm hm"), ("drop", "")):
        with backend_on([events], reasoning=keep) as (backend, _):
            gen = pt.gen("x", separate_reasoning=True)
            state = run(backend, pt.user("q") + pt.assistant(gen), stream=stream)
            assert (state["x"], state["x_reasoning_content"]) == ("tree", reasoning)


# -- select ------------------------------------------------------------------------------------------------------------


def scores(*texts: tuple[list[str], list[float | None]]) -> dict[str, Any]:
    """A reply of completions with echo."""
    choices = [
        {
            "index": place,
            "text": "".join(tokens),
            "finish_reason": "length",
            "logprobs": {"tokens": tokens, "token_logprobs": values, "top_logprobs": None, "text_offset": []},
        }
        for place, (tokens, values) in enumerate(texts)
    ]
    return {"choices": choices, "usage": {"prompt_tokens": 9, "completion_tokens": 0}}


@pytest.mark.parametrize(
    ("method", "winner"),
    [
        (pt.token_length_normalized, "green"),
        (pt.greedy_token_selection, "blue"),
        (pt.unconditional_likelihood_normalized, "blue"),
    ],
)
def test_select_scores_the_joint_tokens(method: Any, winner: str) -> None:
    """Every choice is scored after the tokens that it shares with the prompt, by each method, in one request."""
    sky: list[str] = ["The", " sky", ":"]
    given: list[float | None] = [None, -1.0, -1.0]
    texts: list[tuple[list[str], list[float | None]]] = [
        (sky, given),
        ([*sky, " b", "lue"], [*given, -1.0, -3.0]),
        ([*sky, " g", "reen"], [*given, -1.5, -1.0]),
    ]
    alone: list[tuple[list[str], list[float | None]]] = [
        ([" b", "lue"], [None, -6.0]),
        ([" g", "reen"], [None, -1.0]),
    ]
    reply = scores(*texts, *(alone if method == pt.unconditional_likelihood_normalized else []))
    with backend_on([reply]) as (backend, service):
        state = run(backend, "The sky:" + pt.select("x", [" blue", " green"], choices_method=method))
        assert state["x"].strip() == winner
        info = state.get_meta_info("x")
        assert info["scores"][0].logprobs == (-1.0, -3.0)
    body = service.posts[0].body
    assert (body["echo"], body["max_tokens"]) == (True, 0)
    assert body["prompt"][:3] == ["The sky:", "The sky: blue", "The sky: green"]


def test_select_by_asking() -> None:
    """A service that scores nothing writes one of the choices; it is asked for scores only once."""

    def script(asked: Asked) -> Reply:
        return Refusal(400, "no echo") if asked.body.get("echo") else says("green")

    with backend_on(script) as (backend, service):
        state = run(backend, "The sky: " + pt.select("x", ["blue", "green"]) + " and " + pt.select("y", ["green"]))
        assert (state["x"], state["y"]) == ("green", "green")
    assert [bool(asked.body.get("echo")) for asked in service.posts] == [True, False, False]
    with backend_on(script, select_by="scores") as (backend, _):
        assert "select_by='asking'" in str(failure(backend, "The sky: " + pt.select("x", ["blue", "green"])))


def test_select_in_a_conversation() -> None:
    """In messages the choice is held by a schema."""
    with backend_on([says('{"answer":"fail"}')]) as (backend, service):
        state = run(backend, pt.user("q") + pt.assistant(pt.select("x", ["pass", "fail"])))
        assert state["x"] == "fail"
    schema = service.posts[0].body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["answer"]["enum"] == ["pass", "fail"]
    assert service.posts[0].body["temperature"] == 0


# -- answers -----------------------------------------------------------------------------------------------------------


def test_streams() -> None:
    """Deltas come as the service sends them, for each of several answers."""
    with backend_on([says("Hello wörld 👋", "zwei", pieces=5)]) as (backend, service):
        state = run(backend, pt.user("q") + pt.assistant(pt.gen("x", n=2)), stream=True)
        pieces = list(state.text_iter("x"))
        assert ("".join(pieces), len(pieces)) == ("Hello wörld 👋", 5)
        assert state["x"] == ["Hello wörld 👋", "zwei"]
    assert service.posts[0].body["stream_options"] == {"include_usage": True}


def test_stop_patterns_are_cut_here() -> None:
    """A service without stop_regex gives its text up to the first match."""
    with backend_on([says("one. two")] * 2) as (backend, _):
        state = run(backend, "q" + pt.gen("x", stop_regex="[.!]"))
        assert (state["x"], state.get_meta_info("x")["matched"]) == ("one", ".")
        assert "".join(run(backend, "q" + pt.gen("x", stop_regex="[.!]"), stream=True).text_iter("x")) == "one"


def test_usage_and_logprobs() -> None:
    """Counts and log-probabilities are in the meta info, and counts add up in the backend."""
    entry = {"token": "yes", "logprob": -0.25, "top_logprobs": [{"token": "yes", "logprob": -0.25}]}
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}
    answer = says("yes", choice={"logprobs": {"content": [entry]}}, usage=usage)
    with backend_on([answer]) as (backend, _):
        info = run(backend, pt.user("q") + pt.assistant(pt.gen("x", logprobs=1))).get_meta_info("x")
        assert (info["prompt_tokens"], info["cached_tokens"], info["completion_tokens"]) == (9, 8, 4)
        assert (info["logprobs"][0].text, info["logprobs"][0].top[0].logprob) == ("yes", -0.25)
        used = backend.usage
    assert (used.requests, used.prompt_tokens, used.cached_tokens, used.completion_tokens) == (1, 9, 8, 4)
    assert used.cost(prompt=1e6, completion=2e6, cached=0.5e6) == 1 + 4 + 8


def test_prompt_logprobs_come_by_echo() -> None:
    """Of plain text, a service that echoes tells the log-probabilities of the prompt as well."""
    logprobs = {
        "tokens": ["The", " sky", " is", " blue"],
        "token_logprobs": [None, -1.0, -2.0, -0.5],
        "top_logprobs": [None, {" sky": -1.0, " x": -2.0}, {" is": -2.0, " y": -3.0}, {" blue": -0.5, " z": -2.0}],
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    with backend_on([says("The sky is blue", choice={"logprobs": logprobs}, usage=usage)] * 2) as (backend, _):
        gen = pt.gen("x", return_logprob=True, top_logprobs_num=1, logprob_start_len=0)
        state = run(backend, "The sky is" + gen)
        assert state["x"] == " blue"
        prompt = state.get_meta_info("x")["prompt_logprobs"]
        assert [None if entry is None else entry.logprob for entry in prompt] == [None, -1.0, -2.0]
        assert [len(entry.top) for entry in state.get_meta_info("x")["logprobs"]] == [1]
        error = failure(backend, "The sky is" + pt.gen("x", prompt_logprobs=1, prompt_logprobs_from=9))
        assert "prompt_logprobs_from=9" in str(error)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (Refusal(400, "temperature is too hot"), pt.RequestError, "temperature is too hot"),
        (Refusal(400, "bad pattern", code="invalid_grammar"), pt.GrammarError, "bad pattern"),
        (Refusal(401, "bad key"), pt.RequestError, "OPENAI_API_KEY"),
        (Refusal(429, "slow down"), pt.PalmetteError, "too busy"),
        (Refusal(500, "oh"), pt.EngineError, "500"),
        (says("x", finish="content_filter"), pt.RequestError, "content filter"),
        (says("", message={"refusal": "I may not"}), pt.RequestError, "I may not"),
        ({"choices": "none"}, pt.EngineError, "not OpenAI's"),
        ({"choices": []}, pt.EngineError, "broke off"),
        ({"choices": [{"index": 3, "message": {"content": "x"}}]}, pt.EngineError, "answer 3"),
    ],
)
def test_what_a_service_may_do_wrong(reply: Reply, kind: type[Exception], words: str) -> None:
    """Each failure is an error of its kind at the read, with the service's own words; the backend goes on."""
    with backend_on([reply, says("fine")]) as (backend, _):
        error = failure(backend, pt.user("q") + pt.assistant(pt.gen("x")))
        assert isinstance(error, kind)
        assert words in str(error)
        assert run(backend, pt.user("q") + pt.assistant(pt.gen("x")))["x"] == "fine"


def test_retries_wait_as_the_service_says() -> None:
    """429 and 5xx are tried again, Retry-After honoured, as often as was said."""
    busy = Refusal(429, headers={"retry-after": "0.01"})
    with backend_on([busy, Refusal(500, headers={"retry-after": "0.01"}), says("x")], max_retries=2) as (
        backend,
        service,
    ):
        assert run(backend, "q" + pt.gen("x"))["x"] == "x"
        assert len(service.posts) == 3
    with backend_on([busy] * 2, max_retries=1) as (backend, service):
        assert "too busy" in str(failure(backend, "q" + pt.gen("x")))
        assert len(service.posts) == 2


def test_a_stream_that_breaks() -> None:
    """Before its first text a stream is asked for again; after it, the generation fails and what came was shown."""
    with backend_on([says("never", breaks_after=0), says("whole")], max_retries=1) as (backend, _):
        assert run(backend, "q" + pt.gen("x"), stream=True)["x"] == "whole"

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "q" + pt.gen("x")

    with backend_on([says("half a text", breaks_after=1)], max_retries=1) as (backend, _):
        state = program.stream(backend=backend)
        pieces = []
        with pytest.raises(pt.NodeFailedError):
            pieces += list(state.text_iter("x"))
        assert isinstance(state.error(), pt.NodeFailedError)


def test_nobody_there() -> None:
    """A service that cannot be reached is named with what to look at."""
    with pt.OpenAIBackend("m", base_url="http://127.0.0.1:9/v1", max_retries=0) as backend:
        error = failure(backend, "q" + pt.gen("x"))
    assert isinstance(error, pt.EngineError)
    assert "http://127.0.0.1:9/v1 cannot be reached" in str(error)


def test_timeouts() -> None:
    """A request that takes longer than timeout_s fails, and what waits for it too."""
    never = threading.Event()
    with backend_on([says("x", waits_for=never)], timeout_s=0.2) as (backend, _):
        error = failure(backend, "q" + pt.gen("x") + pt.gen("y"))
        never.set()
    assert isinstance(error, TimeoutError)
    assert "timeout_s=0.2" in str(error)


def test_a_failure_does_not_end_other_branches() -> None:
    """Siblings and what does not hang on it go on; a reference to it fails with it."""

    def script(asked: Asked) -> Reply:
        return Refusal(400, "bad") if "bad" in asked.body["prompt"] else says("ok")

    @pt.function
    def program(s: pt.ProgramState) -> None:
        good, bad = s.fork(2)
        good += "good" + pt.gen("x")
        bad += "bad" + pt.gen("x")
        good += pt.template("{x}", x=bad.ref("x")) + pt.gen("after")
        assert good["x"] == "ok"
        with pytest.raises(pt.NodeFailedError, match="bad"):
            good["after"]

    with backend_on(script) as (backend, _):
        program.run(backend=backend)


def test_no_more_requests_at_once_than_were_allowed() -> None:
    """Branches wait their turn here."""
    with backend_on(lambda _: says("x"), max_open_requests=3) as (backend, service):

        @pt.function
        def program(s: pt.ProgramState) -> None:
            forks = s.fork(20)
            forks += "q" + pt.gen("x")
            forks.join()
            assert s["x"] == ["x"] * 20

        program.run(backend=backend)
    assert len(service.posts) == 20
    assert service.most_open <= 3


def test_closing_a_program_ends_its_requests() -> None:
    """A program that raises does not wait for its answers, and no event comes after it."""
    never = threading.Event()

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "q" + pt.gen("x")
        s += pt.gen("y")
        raise LookupError("mine")

    with backend_on([says("x", waits_for=never)] * 2) as (backend, _):
        with pytest.raises(LookupError, match="mine"):
            program.run(backend=backend)
        never.set()


def test_closing_the_backend_ends_programs() -> None:
    """What still runs fails with an error; a closed backend says that it is."""
    never = threading.Event()

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "q" + pt.gen("x")

    with backend_on([says("x", waits_for=never)]) as (backend, service):
        state = program.stream(backend=backend)
        while not service.posts:
            threading.Event().wait(0.01)
        backend.close()
        assert isinstance(state.error(), pt.NodeFailedError)
        with pytest.raises(pt.EngineError, match="closed"):
            backend.open(lambda _: None).extend([])
        never.set()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": ""}, "model"),
        ({"prefix": "maybe"}, "'refuse', 'send', 'ask'"),
        ({"select_by": "luck"}, "'auto', 'scores', 'asking'"),
        ({"max_retries": -1}, "max_retries"),
        ({"grammar_attempts": 0}, "grammar_attempts"),
        ({"max_open_requests": True}, "max_open_requests"),
        ({"timeout_s": 0}, "timeout_s"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], words: str) -> None:
    """Each says what is allowed."""
    with pytest.raises(ValueError, match=words):
        pt.OpenAIBackend(**{"model": "m", "base_url": "http://127.0.0.1:9/v1", **options})


def test_openai_s_service_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a base_url and a key there is nothing to talk to; another service need not have a key."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ValueError, match="OPENAI_API_KEY"):
        pt.OpenAIBackend("m")
    with backend_on([says("x")], api_key="secret") as (backend, service):
        run(backend, "q" + pt.gen("x"))
    assert service.posts[0].headers["authorization"] == "Bearer secret"


def test_without_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the extra is not installed, the error says how to install it."""
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(pt.EngineError, match=r"pip install 'palmette\[openai\]'"):
        pt.OpenAIBackend("m")
