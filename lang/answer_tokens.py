"""Where an answer's tokens stand in its text, with what the model thought of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from palmette.runtime.program import Completion, TokenLogprob


class AnswerToken(NamedTuple):
    """A token of an answer, or several that share a character.

    Attributes:
        text: the characters of the answer that it is; "" for a token that ended the answer.
        spelled: the text of the token by itself: of one that ended the answer, its name.
        logprob: of the token; of several, of all of them together.
        top: the likeliest tokens at its place, the likeliest first; of several, of the first.
        forced: the grammar left no choice.
    """

    text: str
    spelled: str
    logprob: float
    top: tuple[tuple[str, float], ...]
    forced: bool


def answer_tokens(answer: Completion) -> tuple[AnswerToken, ...]:
    """An answer's tokens, which together are its text; none where log-probabilities and their texts were not asked for.

    Tokens that end within a character are one with those that complete it.
    """
    entries = answer.logprobs or ()
    if not entries or any(entry.text is None for entry in entries):
        return ()
    tokens: list[AnswerToken] = []
    place, held = 0, list[TokenLogprob]()
    for entry in entries:
        spelled = entry.text or ""
        begin = answer.text.find(spelled, place, place + 4 * len(held) + len(spelled))
        within = _is_partial(held) and (not spelled or "\ufffd" in spelled or begin == place)
        if begin < 0 or within:
            held.append(entry)  # a part of a character, or the name of a token that is no text
        else:
            end = begin + len(spelled)
            tokens += [*_token(answer, held, place, begin), *_token(answer, [entry], begin, end)]
            held, place = [], end
    return (*tokens, *_last(answer, held, place))


def _last(answer: Completion, held: Sequence[TokenLogprob], place: int) -> list[AnswerToken]:
    """The rest of the text, which is a part of the first token held or of a character; and tokens that are no text."""
    rest = len(answer.text) > place
    inside = held if rest and _is_partial(held) else held[: int(rest)]
    outside = [_token(answer, [entry], len(answer.text), len(answer.text)) for entry in held[len(inside) :]]
    return [*_token(answer, inside, place, len(answer.text)), *(token for each in outside for token in each)]


def _is_partial(entries: Sequence[TokenLogprob]) -> bool:
    """Whether one of them is a part of a character."""
    return any("\ufffd" in (entry.text or "") for entry in entries)


def _token(answer: Completion, entries: Sequence[TokenLogprob], begin: int, end: int) -> tuple[AnswerToken, ...]:
    if not entries:
        return ()
    return (
        AnswerToken(
            text=answer.text[begin:end],
            spelled="".join(entry.text or "" for entry in entries),
            logprob=sum(entry.logprob for entry in entries),
            top=tuple((top.text or "", top.logprob) for top in entries[0].top),
            forced=any(first <= begin < last for first, last in answer.forced_ranges) and begin < end,
        ),
    )
