"""One answer of a service holds those of several generations, where the program asked for that."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fake_openai import Asked, FakeOpenAI, Reply, says

import palmette as pt
from palmette.lang.openai_speculation import Ahead, take
from palmette.runtime.sampling_params import SamplingParams

CARD = "Name: Ada\nBirthday: 10 December\nJob: mathematician\nWelcome."
ANSWERS = {"name": " Ada", "birthday": " 10 December", "job": " mathematician"}


class Writer:
    """A service whose model always writes the same text, a character a token."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts
        self._given = 0

    def __call__(self, asked: Asked) -> Reply:
        text = self._texts[min(self._given, len(self._texts) - 1)]
        self._given += 1
        messages = asked.body.get("messages")
        text = text if messages else text.removeprefix(asked.body["prompt"])
        ends = [text.find(stop) for stop in asked.body.get("stop", ()) if stop in text]
        whole = text[: min(ends)] if ends else text
        said = whole[: asked.body.get("max_tokens") or len(whole)]
        finish = "stop" if said == whole else "length"
        return says(said, finish=finish, usage={"prompt_tokens": 5, "completion_tokens": len(said)})


def card(*, tokens: int | None, chat: bool = False, **gen: Any) -> pt.Function[..., None]:
    """A program that fills in a card."""

    @pt.function(num_api_spec_tokens=tokens, temperature=0)
    def program(s: pt.ProgramState) -> None:
        line = "Name:" + pt.gen("name", stop="\n", **gen) + "\nBirthday:" + pt.gen("birthday", stop="\n", **gen)
        line += "\nJob:" + pt.gen("job", stop="\n", **gen) + "\nWelcome."
        s += pt.user("Fill in.") + pt.assistant(line) if chat else line

    return program


def ask(
    program: pt.Function[..., None], service: FakeOpenAI, **options: Any
) -> tuple[pt.ProgramState, pt.OpenAIBackend]:
    """A run that has ended, and the backend that it was on."""
    with pt.OpenAIBackend("m", base_url=service.url, max_retries=0, **options) as backend:
        return program.run(backend=backend), backend


def values(state: pt.ProgramState) -> dict[str, str]:
    return {name: state[name] for name in ANSWERS}


# -- plain text --------------------------------------------------------------------------------------------------------


def test_one_request_answers_a_line() -> None:
    """The first generation is asked for without its stop, and the others are found in what the model went on with."""
    with FakeOpenAI(Writer(CARD)) as service:
        state, backend = ask(card(tokens=200), service)
    assert values(state) == ANSWERS
    assert state.text() == CARD
    assert len(service.posts) == 1
    assert ("stop" in service.posts[0].body, service.posts[0].body["max_tokens"]) == (False, 200)
    assert (backend.usage.requests, backend.usage.speculated) == (1, 2)
    assert [state.get_meta_info(name)["prompt_tokens"] for name in ANSWERS] == [5, 0, 0]
    assert [state.get_meta_info(name)["completion_tokens"] for name in ANSWERS] == [4, 12, 14]
    assert {state.get_meta_info(name)["matched"] for name in ANSWERS} == {"\n"}


def test_without_it_each_is_asked_for() -> None:
    """It is the program that says whether tokens may be spent on guesses."""
    with FakeOpenAI(Writer(CARD)) as service:
        state, _ = ask(card(tokens=None), service)
    assert values(state) == ANSWERS
    assert [asked.body["stop"] for asked in service.posts] == [["\n"]] * 3


def test_where_the_model_writes_something_else_it_is_asked_again() -> None:
    """What matches is kept; the first generation that does not is asked for with the rest of the line."""
    other = CARD.replace("Job:", "Town: London\nJob:")
    with FakeOpenAI(Writer(other, CARD)) as service:
        state, backend = ask(card(tokens=200), service)
    assert values(state) == ANSWERS
    assert [asked.body["prompt"] for asked in service.posts] == ["Name:", CARD[: CARD.index(" mathematician")]]
    assert service.posts[1].body["stop"] == ["\n"]  # nothing follows the last one, so nothing is guessed
    assert backend.usage.speculated == 1


def test_an_answer_that_is_cut_off_serves_those_before() -> None:
    """The generation in which the tokens ran out is asked for anew."""
    with FakeOpenAI(Writer(CARD)) as service:
        state, _ = ask(card(tokens=1, max_tokens=20), service)
    assert values(state) == ANSWERS
    assert [asked.body["max_tokens"] for asked in service.posts] == [20, 20, 20]
    with FakeOpenAI(Writer(CARD)) as service:
        state, _ = ask(card(tokens=32, max_tokens=20), service)
    assert values(state) == ANSWERS
    assert [asked.body["max_tokens"] for asked in service.posts] == [32, 20]


def test_max_tokens_holds() -> None:
    """An answer that is longer than its generation may be is asked for within its own bounds."""
    with FakeOpenAI(Writer(CARD)) as service:
        state, _ = ask(card(tokens=200, max_tokens=10), service)
    assert (state["name"], state["birthday"]) == (" Ada", " 10 Decemb")
    assert all(state.get_meta_info(name)["completion_tokens"] <= 10 for name in ANSWERS)


def test_values_may_be_read_on_the_way() -> None:
    """What was written ahead waits for what the program appends later, if that is what it says."""

    @pt.function(num_api_spec_tokens=200)
    def program(s: pt.ProgramState) -> None:
        s += "Name:" + pt.gen("name", stop="\n") + "\nBirthday:" + pt.gen("birthday", stop="\n")
        assert s["name"] == " Ada"
        s += "\nJob:" + pt.gen("job", stop="\n")

    with FakeOpenAI(Writer(CARD)) as service:
        state, _ = ask(program, service)
    assert values(state) == ANSWERS
    assert len(service.posts) == 1


def test_one_branch_only_gets_what_was_written_ahead() -> None:
    """Of branches that go on alike the others are asked for themselves: their answers are not copies."""

    @pt.function(num_api_spec_tokens=200)
    def program(s: pt.ProgramState) -> None:
        s += "Name:" + pt.gen("name", stop="\n") + "\nBirthday:" + pt.gen("birthday", stop="\n")
        forks = s.fork(3)
        forks += "\nJob:" + pt.gen("job", stop="\n")
        forks.join()

    with FakeOpenAI(Writer(CARD)) as service:
        state, _ = ask(program, service)
    assert state["job"] == [ANSWERS["job"]] * 3
    assert len(service.posts) == 3


@pytest.mark.parametrize(
    "gen",
    [
        {"n": 2},
        {"regex": "[A-Za-z0-9 ]+"},
        {"logprobs": 1},
        {"frequency_penalty": 0.5},
    ],
)
def test_what_cannot_be_guessed_is_asked_for(gen: dict[str, Any]) -> None:
    """Several answers, grammars, log-probabilities and penalties belong to one request each."""

    @pt.function(num_api_spec_tokens=200)
    def program(s: pt.ProgramState) -> None:
        s += "A:" + pt.gen("a", stop="\n", **gen) + "\nB:" + pt.gen("b", stop="\n", **gen)

    def script(asked: Asked) -> Reply:
        return says(*["x1"] * asked.body.get("n", 1), choice={"logprobs": {"tokens": ["x1"], "token_logprobs": [-1.0]}})

    with FakeOpenAI(script) as service:
        state, _ = ask(program, service)
        assert state.error() is None
    assert [asked.body["stop"] for asked in service.posts] == [["\n"]] * 2


def test_other_options_are_other_answers() -> None:
    """A generation that is sampled otherwise does not take what was sampled for another."""

    @pt.function(num_api_spec_tokens=200)
    def program(s: pt.ProgramState) -> None:
        s += "Name:" + pt.gen("name", stop="\n") + "\nBirthday:" + pt.gen("birthday", stop="\n", temperature=0)
        s += "\nJob:" + pt.gen("job", stop="\n")

    with FakeOpenAI(Writer(CARD)) as service:
        state, _ = ask(program, service)
    assert values(state) == ANSWERS
    assert len(service.posts) == 3


def test_streams_show_what_comes() -> None:
    """A program that streams gets the answers of a line at once, each as its own."""
    with FakeOpenAI(Writer(CARD)) as service, pt.OpenAIBackend("m", base_url=service.url) as backend:
        state = card(tokens=200).stream(backend=backend)
        assert "".join(state.text_iter("birthday")) == ANSWERS["birthday"]
        assert "".join(state.text_iter()) == CARD


def test_other_backends_ignore_it() -> None:
    """An engine's calls cost no round trips, and a mock's answers are whole."""
    state = card(tokens=200).run(backend=pt.MockBackend(["a", "b", "c"]))
    assert state.text() == "Name:a\nBirthday:b\nJob:c\nWelcome."
    bound = card(tokens=200).bind()
    with FakeOpenAI(Writer(CARD)) as service:
        assert values(ask(bound, service)[0]) == ANSWERS
        assert len(service.posts) == 1


@pytest.mark.parametrize("tokens", [0, -1, True, 2.5, "64"])
def test_a_wrong_number_is_refused(tokens: Any) -> None:
    """The decorator says what it takes."""
    with pytest.raises(pt.RequestError, match="num_api_spec_tokens must be a whole number of at least 1"):
        pt.function(num_api_spec_tokens=tokens)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_message_is_written_by_one_answer() -> None:
    """A chat service, which cannot go on with a message, is expected to write the program's text itself."""
    with FakeOpenAI(Writer(CARD)) as service:
        state, _ = ask(card(tokens=200, chat=True), service)
    assert values(state) == ANSWERS
    assert state.messages()[-1]["content"] == CARD
    assert [asked.body["messages"] for asked in service.posts] == [[{"role": "user", "content": "Fill in."}]]


def test_a_message_that_goes_on_otherwise_is_asked_for_again() -> None:
    """Nothing was told to the program yet, so another message may be tried."""
    texts = ("Sure! " + CARD, CARD.replace("Job:", "Work:"), CARD)
    with FakeOpenAI(Writer(*texts)) as service:
        state, _ = ask(card(tokens=200, chat=True), service)
    assert values(state) == ANSWERS
    assert len(service.posts) == 3


def test_a_message_that_never_fits_fails() -> None:
    """What could be kept is; the errors say what was wanted and what came."""
    with FakeOpenAI(Writer("Sure! " + CARD)) as service:
        state, _ = ask(card(tokens=200, chat=True), service)
    assert "did not begin with 'Name:'" in str(state.error())
    assert "'Sure! Name: Ada" in str(state.error())
    with FakeOpenAI(Writer(CARD.replace("Job:", "Work:"))) as service:
        state, _ = ask(card(tokens=200, chat=True), service)
    assert (state["name"], state["birthday"]) == (" Ada", " 10 December")
    assert "the program goes on with '\\nJob:', and the model wrote '\\nWork: mathematician" in str(state.error())


def test_a_message_may_begin_with_a_generation_or_hold_one_alone() -> None:
    """The same holds for a message without text of the program's, and for one with a text and a generation."""

    @pt.function(num_api_spec_tokens=100)
    def program(s: pt.ProgramState) -> None:
        s += pt.user("q") + pt.assistant(pt.gen("a", stop=".") + ". B" + pt.gen("b", stop="."))
        s += pt.user("q") + pt.assistant("The answer is " + pt.gen("c"))

    with FakeOpenAI(Writer("One. Bee. See", "The answer is four")) as service:
        state, _ = ask(program, service)
    assert (state["a"], state["b"], state["c"]) == ("One", "ee", "four")
    assert len(service.posts) == 2


def test_what_was_not_guessed_is_refused_as_elsewhere() -> None:
    """A message that goes on after an answer without a stop is one that the service cannot go on with."""

    @pt.function(num_api_spec_tokens=100)
    def program(s: pt.ProgramState) -> None:
        s += pt.user("q") + pt.assistant(pt.gen("a") + ". B" + pt.gen("b"))

    with FakeOpenAI(Writer("One")) as service:
        state, _ = ask(program, service)
    assert state["a"] == "One"
    assert "prefix='send'" in str(state.error())


def test_a_service_that_goes_on_with_messages_is_asked_to() -> None:
    """There nothing has to be guessed right: what does not match is asked for from where it stands."""
    other = CARD.replace("\nJob", "\nTown")
    with FakeOpenAI(Writer(other.removeprefix("Name:"), " mathematician")) as service:
        state, _ = ask(card(tokens=200, chat=True), service, prefix="send")
    assert values(state) == ANSWERS
    assert [asked.body["messages"][-1]["content"][-5:] for asked in service.posts] == ["Name:", "\nJob:"]


# -- the law -----------------------------------------------------------------------------------------------------------


@given(text=st.text("ab\n.", max_size=12), stop=st.sampled_from(["\n", "a.", "b"]), ended=st.booleans())
def test_an_answer_is_what_would_have_been_given(text: str, stop: str, ended: bool) -> None:
    """What is taken is the text before the first stop, and it and the rest are all that was written."""
    ahead = Ahead(text, ended, SamplingParams(), 1.0)
    taken = take(SamplingParams(stop=(stop,)), ahead)
    if stop not in text:
        assert (taken is not None) == ended
        assert taken is None or (taken.text, taken.ahead) == (text, None)
    else:
        assert taken is not None
        assert taken.ahead is not None
        assert taken.text == text[: text.index(stop)]
        assert taken.text + taken.ahead.text == text


def test_a_pattern_at_the_very_end_may_have_gone_on() -> None:
    """Where the tokens ran out, a pattern that matches up to there might have matched more, or not at all."""
    params = SamplingParams(stop_regex=("[0-9]$", "[0-9][.]"))
    assert take(params, Ahead("ab1", False, SamplingParams(), 1.0)) is None
    assert take(params, Ahead("ab1. ", False, SamplingParams(), 1.0)) is not None
