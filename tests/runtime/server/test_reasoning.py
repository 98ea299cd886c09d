"""Reasoning: found by the model's template, split from answers that come in pieces, kept out of their grammar."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.constrained import Grammar, matches
from palmette.runtime.program import ModelInfo
from palmette.runtime.server.reasoning import PromptState, ReasoningFormat, SplitText, reasoning_format_of

THINK = ReasoningFormat("<think>", "</think>")


def info(template: str | None, special_tokens: tuple[str, ...] = ()) -> ModelInfo:
    return ModelInfo(name="m", context_length=1, vocab_size=1, chat_template=template, special_tokens=special_tokens)


def split(pieces: Iterable[str], state: PromptState) -> tuple[str, str]:
    splitter = THINK.splitter(state)
    parts = [splitter.push(piece) for piece in pieces]
    parts.append(splitter.finish())
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


def expected(text: str, state: PromptState) -> tuple[str, str]:
    """The same by a regular expression on the whole."""
    if state == "over":
        return "", text
    found = re.match(r"\s*<think>" if state == "open" else r"(\s*<think>)?", text)
    if found is None:
        return "", text
    reasoning, _, content = text[found.end() :].partition("</think>")
    return reasoning.strip(), content.lstrip()


def test_formats() -> None:
    """The tags are those that the template writes; none where there are none, or where text does not show them."""
    assert reasoning_format_of(info("{{ '<think>' }}")) == THINK
    assert reasoning_format_of(info("{{ '◁think▷' }}")) == ReasoningFormat("◁think▷", "◁/think▷")
    assert reasoning_format_of(info("{{ messages }}")) is None
    assert reasoning_format_of(info(None)) is None
    assert reasoning_format_of(info("[THINK]", ("[THINK]", "[/THINK]"))) is None


@pytest.mark.parametrize(
    ("prompt", "state"),
    [
        ("<|im_start|>assistant\n", "open"),
        ("<|im_start|>assistant\n<think>\n", "begun"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "over"),
        ("", "open"),
    ],
)
def test_state_after_prompt(prompt: str, state: PromptState) -> None:
    """Whether an answer begins inside, behind or before its reasoning is seen at the end of the prompt."""
    assert THINK.state_after(prompt) == state


FRAGMENTS = ["<think>", "</think>", "<", "</", "think>", "a", " ", "\n", "b c", "é", "<thin", "</think"]


@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join),
    st.lists(st.integers(0, 80), max_size=8),
    st.sampled_from(["open", "begun", "over"]),
)
@settings(max_examples=1500)
def test_any_pieces_give_the_same(text: str, cuts: list[int], state: PromptState) -> None:
    """However an answer is cut, its parts are those of the whole."""
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    assert split(pieces, state) == expected(text, state)


def test_no_half_tag_is_shown() -> None:
    """What may be a tag is held back until it is known, and nothing else is."""
    splitter = THINK.splitter("open")
    assert splitter.push("\n<thi") == SplitText()
    assert splitter.push("nk>\nHm, 1 ") == SplitText(reasoning="Hm, 1")
    assert not splitter.in_content
    assert splitter.push("< 2 </th") == SplitText(reasoning=" < 2")
    assert splitter.push("ink>\n\n") == SplitText()
    assert splitter.in_content
    assert splitter.push("Yes") == SplitText(content="Yes")
    assert splitter.finish() == SplitText()


def test_reasoning_without_end() -> None:
    """An answer that was cut off in its reasoning is reasoning; one that never began it is content."""
    assert split(["half a "], "begun") == ("half a", "")
    assert split(["<think> half a "], "open") == ("half a", "")
    assert split(["half a "], "open") == ("", "half a ")
    assert split(["<thi"], "open") == ("", "<thi")
    assert split(["<thi"], "begun") == ("<thi", "")


def test_grammar_holds_what_follows_the_reasoning() -> None:
    """The grammar of an answer begins after the reasoning, which is free and there only where the prompt allows it."""
    number = Grammar.regex("[0-9]+")
    assert THINK.grammar(None, "begun") is None
    assert THINK.grammar(number, "over") == number
    begun, open_ = THINK.grammar(number, "begun"), THINK.grammar(number, "open")
    assert begun is not None
    assert open_ is not None
    assert matches(begun, "so it is\n</think>\n\n42")
    assert not matches(begun, "42")
    assert matches(open_, "42")
    assert matches(open_, "<think>two</think>2")
    assert not matches(open_, "<think>two</think>x")
    assert THINK.grammar(open_, "open") == open_
