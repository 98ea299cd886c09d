"""The mock answers as its script says, and tells when the script cannot be kept."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from tests.wire import run_tree

import palmette as pt
from palmette.lang.backend import Backend
from palmette.lang.mock_latency import Latency
from palmette.lang.mock_script import completion as completion_of
from palmette.runtime.choices import decide
from palmette.runtime.program import (
    Delta,
    Event,
    Failed,
    Fork,
    Generate,
    Generated,
    Node,
    Reference,
    Select,
    Text,
    TokenLogprob,
)
from palmette.runtime.sampling_params import SamplingParams


def asked(answers: Any, *exprs: str | pt.Expr) -> pt.ProgramState:
    """The state of a program that appends `exprs`."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        for expr in exprs:
            s += expr

    return program.run(backend=pt.MockBackend(answers))


def test_it_is_a_backend() -> None:
    """It satisfies the protocol, and describes its model."""
    backend = pt.MockBackend(chat_template="x", bos_token="<s>", eos_token="</s>")
    assert isinstance(backend, Backend)
    info = backend.model_info
    assert (info.name, info.chat_template, info.bos_token, info.eos_token) == ("mock", "x", "<s>", "</s>")


def test_answers_by_order_pattern_and_function() -> None:
    """A list answers in order, a mapping by the first pattern found in the prompt, a function by prompt and node."""
    question = ("The sky is ", pt.gen("x"), " and ", pt.gen("y"))
    assert asked(["blue", "wide"], *question).text() == "The sky is blue and wide"
    assert asked({"and": "high", "sky": "grey"}, *question).text() == "The sky is grey and high"
    assert asked(lambda prompt, node: str(len(prompt) + node.id), *question).text() == "The sky is 12 and 21"


def test_select_takes_the_scripted_choice_or_the_first() -> None:
    """Without a scripted answer the first choice wins; an answer that is none of the choices fails."""
    pick = pt.select("x", ["a", "b"])
    assert asked(["b"], pick)["x"] == "b"
    assert asked({"nothing": "b"}, pick)["x"] == "a"
    assert asked([], pick)["x"] == "a"
    with pytest.raises(pt.NodeFailedError, match=r"'c' is none of the choices"):
        asked(["c"], pick)["x"]


@pytest.mark.parametrize(
    ("expr", "good", "bad"),
    [
        (pt.gen("x", regex="[0-9]+"), "12", "12a"),
        (pt.gen("x", grammar=pt.Grammar.choices(["a", "b"])), "a", "ab"),
        (pt.gen("x", json_schema={"type": "object", "required": ["a"]}), '{"a": 1}', "{}"),
        (pt.gen("x", json_schema={"type": "integer"}), "1", "1."),
    ],
)
def test_answers_must_keep_their_constraint(expr: pt.Expr, good: str, bad: str) -> None:
    """An answer that breaks its grammar is the node's error, not a silent wrong value."""
    state = asked([good], expr)
    assert state["x"] == good
    assert state.get_meta_info("x")["finish_reason"] == "grammar"
    with pytest.raises(pt.NodeFailedError, match=r"MockBackend's answer .* breaks the") as caught:
        asked([bad], expr)["x"]
    assert isinstance(caught.value.__cause__, pt.GrammarError)


def test_missing_answers_and_failing_functions() -> None:
    """The error says what the script lacked, or what its function raised."""
    with pytest.raises(pt.NodeFailedError, match=r"no answer left \(it was given 1\) for the prompt 'ab'"):
        asked(["b"], "a", pt.gen("x"), pt.gen("y"))["y"]
    with pytest.raises(pt.NodeFailedError, match="none of its 1 patterns is found"):
        asked({"z": "b"}, "a", pt.gen("x"))["x"]

    def fail(prompt: str, node: object) -> str:
        raise RuntimeError("broken script")

    with pytest.raises(pt.NodeFailedError, match="RuntimeError: broken script"):
        asked(fail, "a", pt.gen("x"))["x"]


@pytest.mark.parametrize("answers", ["text", 3, None])
def test_scripts_of_other_kinds_are_refused(answers: Any) -> None:
    """A bare string would be read letter by letter: refused."""
    with pytest.raises(TypeError, match="answers must be a list, a mapping"):
        pt.MockBackend(answers)


def test_a_pattern_may_have_several_answers_or_a_function() -> None:
    """A list gives each of its texts once, a function what it returns; what is missing is said with the pattern."""
    backend = pt.MockBackend({"^Tool": ["call", "done"], "sum of": lambda prompt, node: str(len(prompt))})

    @pt.function
    def program(s: pt.ProgramState, question: str) -> None:
        s += question + pt.gen("x")

    states = [program.run(question, backend=backend) for question in ("Tool?", "sum of", "Tool!", "Tool.")]
    assert [state["x"] for state in states[:3]] == ["call", "6", "done"]
    assert "no answer left (it was given 2 for the pattern '^Tool') for the prompt 'Tool.'" in str(states[3].error())
    with pytest.raises(TypeError, match="an answer may be a list of strings or a function too, not 3"):
        pt.MockBackend({"a": 3})  # type: ignore[dict-item]  # what is tested


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"piece_length": 0}, "piece_length=0 must be at least 1"),
        ({"latency_s": -1}, "latency_s must be at least 0 seconds and finite, not -1"),
        ({"token_latency_s": float("nan")}, "token_latency_s must be at least 0 seconds and finite, not nan"),
        ({"latency_s": "1"}, "latency_s must be a number of seconds, not '1'"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], words: str) -> None:
    """Pieces have at least one character, and time does not run backwards."""
    with pytest.raises((TypeError, ValueError), match=words):
        pt.MockBackend(**settings)


def test_answers_take_their_time() -> None:
    """A function says for each call when its answer begins: the quicker ones come first."""
    waits = {"slow": 0.05, "quick": 0.0}
    backend = pt.MockBackend(lambda prompt, node: prompt, latency_s=lambda call: waits[call.prompt])
    nodes: list[Node] = [Text(0, None, "slow"), Text(1, None, "quick")]
    nodes += [Generate(2, 0, SamplingParams()), Generate(3, 1, SamplingParams())]
    assert list(run_tree(backend, nodes).done) == [3, 2]
    broken = run_tree(backend, [Text(0, None, "unknown"), Generate(1, 0, SamplingParams())]).done[1]
    assert isinstance(broken, Failed)
    assert broken.kind == "KeyError"


def test_tokens_take_their_time() -> None:
    """Pieces come as their tokens are written, several answers side by side, and the end with the longest."""
    latency = Latency(2.0, 0.5)
    short, long = (completion_of(Generate(1, None, SamplingParams()), text, 0, ()) for text in ("ab", "abcd efgh"))
    timed = [(when_s, delta.index, delta.text) for when_s, delta in latency.deltas(1, [long, short], 2.0, 3)]
    assert timed == [
        (2.0 + 1 / 3, 0, "abc"),
        (2.5, 1, "ab"),
        (2.0 + 2 / 3, 0, "d e"),
        (3.0, 0, "fgh"),
    ]
    assert latency.end_s(2.0, 2) == 3.0


def test_nothing_need_be_kept() -> None:
    """With record=False neither prompts nor messages are, and round trips are counted all the same."""
    backend = pt.MockBackend({"": "a"}, record=False)
    for _ in range(2):
        run_tree(backend, [Text(0, None, "Hi"), Generate(1, 0, SamplingParams())])
    assert (backend.calls, backend.messages, backend.round_trips) == ([], [], 2)


def test_calls_and_messages_are_recorded() -> None:
    """Each call has its prompt, its node and its answers."""
    backend = pt.MockBackend(["1", "2"])
    listener = run_tree(
        backend, [Text(0, None, "Hi "), Generate(1, 0, SamplingParams(), n=2, stream=True), Text(2, 1, "!")]
    )
    (call,) = backend.calls
    assert (call.prompt, call.node.id, call.answers) == ("Hi ", 1, ("1", "2"))
    assert listener.deltas == [Delta(1, "1", 0), Delta(1, "2", 1)]
    assert [len(message) for message in backend.messages] == [3]


def test_no_event_comes_after_close() -> None:
    """close drops what is still to come, and may be called twice."""
    events: list[Event] = []
    backend = pt.MockBackend({"": "a"}, latency_s=0.02)
    session = backend.open(events.append)
    nodes: list[Node] = [Generate(0, None, SamplingParams())]
    session.extend(nodes)
    session.close()
    session.close()
    run_tree(backend, nodes)
    assert events == []


def generated(event: Event) -> Generated:
    assert isinstance(event, Generated), event
    return event


def run_one(answer: str, grammar: pt.Grammar | None = None, *, n: int = 1, prompt: str = "", **params: Any) -> Any:
    """The final event of one streamed generation, whose deltas were checked."""
    nodes: list[Node] = [Text(0, None, prompt), Generate(1, 0, SamplingParams(**params), grammar, n, stream=True)]
    listener = run_tree(pt.MockBackend({"": answer}), nodes)
    event = listener.done[1]
    for index, completion in enumerate(event.completions if isinstance(event, Generated) else ()):
        assert "".join(d.text for d in listener.deltas if d.index == index) == completion.text
    return event


@pytest.mark.parametrize(
    ("stops", "text", "matched"),
    [
        ({"stop": ("\n", "Q:")}, "one Q two", "\n"),
        ({"stop_regex": ("[tT]\\w+",)}, "one Q ", "tw"),
        ({"stop": ("wo",), "stop_regex": ("Q ?t",)}, "one ", "Q t"),
        ({"stop_regex": ("e$", "three$")}, "one Q two\n", "three"),
        ({"stop": ("four",)}, "one Q two\nthree", None),
    ],
)
def test_an_answer_ends_before_its_first_stop(stops: dict[str, Any], text: str, matched: str | None) -> None:
    """Strings and patterns are found as in a model's text, in every one of n answers."""
    event = run_one("one Q two\nthree", n=2, **stops)
    assert [(c.text, c.matched, c.finish_reason) for c in event.completions] == [(text, matched, "stop")] * 2


def test_a_stop_ends_a_constrained_answer_only_where_the_grammar_accepts() -> None:
    """Elsewhere it is ordinary text, and the next one counts."""
    grammar = pt.Grammar.regex("a[.]b([.]c)?")
    (completion,) = run_one("a.b.c", grammar, stop=(".",)).completions
    assert (completion.text, completion.matched, completion.finish_reason) == ("a.b", ".", "stop")
    (completion,) = run_one("a.b.c", grammar, stop_regex=("a",)).completions
    assert (completion.text, completion.finish_reason) == ("a.b.c", "grammar")


def test_a_pattern_or_grammar_that_cannot_be_used_fails_its_node() -> None:
    """The error is the one that a model's engine gives."""
    for event in (run_one("a", stop_regex=("(",)), run_one("a", pt.Grammar.regex("("))):
        assert isinstance(event, Failed)
        assert "Grammar" in event.kind


def test_a_generation_of_no_answers_fails() -> None:
    """n must be at least 1 here too."""
    event = run_one("a", n=0)
    assert isinstance(event, Failed)
    assert event.message == "n must be at least 1, not 0"


def test_logprobs_have_the_shape_of_a_models() -> None:
    """One a word and the likeliest of its place, falling, the same every time; texts only where asked for."""
    options: dict[str, Any] = {"logprobs": 3, "prompt_logprobs": 2, "prompt_logprobs_from": 1}
    (plain,) = run_one("two words", prompt="a b c", **options).completions
    (spelled,) = run_one("two words", prompt="a b c", return_text_in_logprobs=True, **options).completions
    assert [entry.text for entry in spelled.logprobs] == ["two", " words"]
    assert [entry.text for entry in spelled.prompt_logprobs] == [" b", " c"]
    for entry, other in zip(
        (*plain.logprobs, *plain.prompt_logprobs), (*spelled.logprobs, *spelled.prompt_logprobs), strict=True
    ):
        assert isinstance(entry, TokenLogprob)
        assert (entry.token_id, entry.logprob, entry.text) == (other.token_id, other.logprob, None)
        assert [each.logprob for each in entry.top] == sorted({each.logprob for each in entry.top}, reverse=True)
        assert entry.top[0].token_id == entry.token_id
    assert [len(entry.top) for entry in (*plain.logprobs, *plain.prompt_logprobs)] == [3, 3, 2, 2]
    (whole,) = run_one("x", prompt="a b c", prompt_logprobs=0).completions
    assert (whole.prompt_logprobs[0], len(whole.prompt_logprobs), whole.logprobs) == (None, 3, None)
    event = run_one("x", prompt="a b c", prompt_logprobs=0, prompt_logprobs_from=3)
    assert isinstance(event, Failed)
    assert event.message == "prompt_logprobs_from=3 is past the prompt of 3 tokens"


def test_a_reference_is_the_text_of_its_source() -> None:
    """Of any branch and kind of node; it waits for its source, and the prompt behind it has its words."""
    backend = pt.MockBackend({"^ask$": "first answer", "more": '"q\\n"', ".": "end"}, latency_s=0.002)
    nodes: list[Node] = [
        Text(0, None, "ask"),
        Generate(1, 0, SamplingParams()),
        Text(2, None, "more"),
        Generate(3, 2, SamplingParams()),
        Select(4, None, ("p", "q")),
        Reference(5, None, 1),
        Reference(6, 5, 3, unquoted=True),
        Reference(7, 6, 4),
        Reference(8, 7, 0),
        Reference(9, 8, 6),
        Generate(10, 9, SamplingParams()),
    ]
    listener = run_tree(backend, nodes)
    assert backend.calls[-1].prompt == "first answerq\npaskq\n"
    event = generated(listener.done[10])
    assert {usage.node: usage.computed for usage in event.usage} == {10: 1, 9: 2, 8: 1, 7: 1, 6: 2, 5: 2}
    assert event.completions[0].prompt_tokens == 8


@pytest.mark.parametrize(
    ("source", "message"), [(1, "no answer left"), (2, "a fork or a join"), (3, "not one whole JSON string")]
)
def test_a_reference_that_cannot_be_filled_in_fails(source: int, message: str) -> None:
    """With its source's error, or because its source has no text that it could take."""
    nodes: list[Node] = [
        Generate(0, None, SamplingParams()),
        Generate(1, 0, SamplingParams()),
        Fork(2, None, 1),
        Text(3, None, '"cut o'),
        Reference(4, None, source, unquoted=True),
        Generate(5, 4, SamplingParams()),
    ]
    listener = run_tree(pt.MockBackend(["one"]), nodes)
    event = listener.done[5]
    assert isinstance(event, Failed)
    assert message in event.message
    assert listener.done.keys() == {0, 1, 4, 5}


def test_it_says_of_its_model_what_it_is_told() -> None:
    """Special tokens and sampling defaults are those given."""
    info = pt.MockBackend(special_tokens=["<s>"], sampling_defaults={"top_p": 0.9}).model_info
    assert (info.special_tokens, info.sampling_defaults) == (("<s>",), {"top_p": 0.9})


def test_a_simple_script_imports_nothing_heavy() -> None:
    """A mock needs no numba and no torch, with a grammar neither."""
    code = """
import sys
import palmette as pt
@pt.function
def ask(s, **options):
    s += "Q" + pt.gen("x", stop="!", **options)
assert ask.run(backend=pt.MockBackend(["a!b"]))["x"] == "a"
assert not {"numba", "torch"} & sys.modules.keys()
assert ask.run(backend=pt.MockBackend(["12"]), regex="[0-9]+")["x"] == "12"
assert not {"numba", "torch"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("answers", [[1], {"a": None}, {"(": "x"}, {1: "x"}])
def test_answers_that_could_never_be_given_are_refused_at_once(answers: Any) -> None:
    """Answers that are no strings, and patterns that are none, are errors where the mock is made."""
    with pytest.raises((TypeError, ValueError), match="MockBackend"):
        pt.MockBackend(answers)


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt, ZeroDivisionError])
def test_whatever_a_script_raises_is_the_nodes_error(ending: type[BaseException]) -> None:
    """No exception of the answers' function stops the mock's thread."""

    def answer(prompt: str, node: Generate | Select) -> str:
        raise ending()

    @pt.function
    def ask(s: pt.ProgramState) -> None:
        s += pt.gen("x")

    error = ask.run(backend=pt.MockBackend(answer), timeout_s=20).error()
    assert isinstance(error, pt.NodeFailedError)
    assert ending.__name__ in str(error)


def test_a_script_that_returns_none_has_no_answer() -> None:
    """A function that forgets to return says so, and does not answer with the word None."""

    @pt.function
    def ask(s: pt.ProgramState) -> None:
        s += "hello" + pt.gen("x")

    silent: Any = lambda prompt, node: None  # noqa: E731
    assert "has no answer (its function returned None) for the prompt 'hello'" in str(
        ask.run(backend=pt.MockBackend(silent)).error()
    )


@pytest.mark.parametrize(
    "method",
    [pt.token_length_normalized, pt.greedy_token_selection, pt.unconditional_likelihood_normalized],
)
def test_a_select_has_scores(method: Any) -> None:
    """A program that reads them can be tested: by its own method the scripted choice is the likeliest."""

    @pt.function
    def program(s: pt.ProgramState) -> Any:
        s += "The sky is " + pt.select("colour", ["red", "pale blue", "green"], choices_method=method)
        return s.get_meta_info("colour")["scores"]

    scores = program.run(backend=pt.MockBackend(["pale blue"])).ret_value
    assert (len(scores), decide(method, scores)) == (3, 1)
