"""The state of one text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constrained.reference import BYTES, token_set

from palmette.constrained import Grammar, Matcher, TokenRejectedError, compile_grammar

END = 256
COMPILED = compile_grammar(Grammar.regex("(?:ab)*c?"), BYTES)


def accepted(text: str) -> Matcher:
    """A matcher after `text`."""
    matcher = COMPILED.matcher()
    for byte in text.encode():
        matcher.accept(byte)
    return matcher


def test_accept_and_finish() -> None:
    """A matcher is finished where nothing may follow, or after an end token."""
    matcher = accepted("abab")
    assert matcher.is_accepting
    assert not matcher.finished
    matcher.accept(END)
    assert matcher.finished
    assert accepted("abc").finished


@pytest.mark.parametrize(
    ("text", "token", "message"),
    [
        ("a", ord("a"), "not allowed after 1 tokens"),
        ("a", END, "before the text is complete"),
        ("", 999, "not in range"),
    ],
)
def test_rejection_changes_nothing(text: str, token: int, message: str) -> None:
    """A rejected token raises with its spelling and leaves the state as it was."""
    matcher = accepted(text)
    before = matcher.state
    with pytest.raises(TokenRejectedError, match=message):
        matcher.accept(token)
    assert matcher.state == before
    matcher.rollback(len(text))
    assert matcher.state == COMPILED.start


def test_nothing_after_an_end_token() -> None:
    """After an end token everything is rejected, until it is rolled back."""
    matcher = accepted("ab")
    matcher.accept(END)
    assert matcher.finished
    for token in (END, ord("c")):
        with pytest.raises(TokenRejectedError, match="after an end token"):
            matcher.accept(token)
    matcher.rollback(1)
    assert not matcher.finished
    matcher.accept(ord("c"))


@pytest.mark.parametrize("count", [-1, 3])
def test_rollback_of_what_was_not_accepted(count: int) -> None:
    """Rolling back further than the start is an error."""
    with pytest.raises(ValueError, match="from 0 to the 2 accepted tokens"):
        accepted("ab").rollback(count)


@settings(deadline=None)
@given(st.data())
def test_rollback_and_copy_restore_everything(data: st.DataObject) -> None:
    """Accepting n tokens and rolling back n is as if nothing had happened, in the original and in a copy."""
    matcher = COMPILED.matcher()
    states, finished = [matcher.state], [matcher.finished]
    for _ in range(data.draw(st.integers(0, 6))):
        matcher.accept(data.draw(st.sampled_from(sorted(token_set(matcher.mask()) - {END}))))
        states.append(matcher.state)
        finished.append(matcher.finished)
        if matcher.finished:
            break
    copy = matcher.copy()
    count = data.draw(st.integers(0, len(states) - 1))
    matcher.rollback(count)
    assert (matcher.state, matcher.finished) == (states[-1 - count], finished[-1 - count])
    assert (copy.state, copy.finished) == (states[-1], finished[-1])
    copy.rollback(len(states) - 1)
    assert (copy.state, copy.finished) == (COMPILED.start, False)


def test_views_of_the_grammar() -> None:
    """mask, mask_within, forced_bytes and shortest_ending are the grammar's at the current state."""
    matcher = accepted("a")
    assert matcher.forced_bytes() == b"b"
    assert matcher.shortest_ending() == (ord("b"),)
    assert token_set(matcher.mask()) == token_set(matcher.mask_within(1)) == {ord("b")}
