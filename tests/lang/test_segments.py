"""Texts in parts by where they came from, and answers by token."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from palmette.lang.answer_tokens import answer_tokens
from palmette.lang.segments import Segment, answer_segments, cut, given_segments, reused_length
from palmette.runtime.program import Completion, TokenLogprob, TopLogprob


def answer(text: str, tokens: list[str], forced: tuple[tuple[int, int], ...] = ()) -> Completion:
    logprobs = tuple(
        TokenLogprob(place, -0.5, (TopLogprob(place, -0.5, token), TopLogprob(9, -2.0, "no")), token)
        for place, token in enumerate(tokens)
    )
    return Completion(
        text=text, token_ids=(), finish_reason="stop", prompt_tokens=1, cached_tokens=0,
        completion_tokens=len(tokens), logprobs=logprobs, forced_ranges=forced,
    )  # fmt: skip


def test_an_answer_in_parts() -> None:
    """What the grammar forced is told apart from what was sampled, wherever it stands."""
    assert answer_segments('{"a": 12}', ((0, 6), (8, 9))) == (
        Segment("forced", '{"a": '),
        Segment("generated", "12"),
        Segment("forced", "}"),
    )
    assert answer_segments("", ()) == ()


def test_a_prompt_in_parts() -> None:
    """The beginning that the cache had is told apart; a part of a text ends where a word does."""
    text = "one two three four five six seven"
    assert reused_length(text, 0, 7) == 0
    assert reused_length(text, 7, 7) == len(text)
    assert text[: reused_length(text, 3, 7)] == "one two three"
    assert given_segments(text, 3) == (Segment("reused", "one"), Segment("prompt", text[3:]))
    assert reused_length("x" * 100, 1, 2) == 50


@given(st.lists(st.tuples(st.sampled_from(["prompt", "forced"]), st.text(min_size=1)), max_size=5), st.integers(0, 20))
def test_a_cut_keeps_the_beginning(parts: list[tuple[str, str]], length: int) -> None:
    """The segments that are left hold the first characters, and no others."""
    segments = [Segment(kind, text) for kind, text in parts]  # type: ignore[arg-type]
    whole = "".join(text for _, text in parts)
    assert "".join(segment.text for segment in cut(segments, length)) == whole[:length]


@given(st.text(max_size=12), st.data())
def test_tokens_are_the_text(text: str, data: st.DataObject) -> None:
    """However the bytes of an answer fall into tokens, the parts join to its text; characters are never split."""
    encoded = text.encode(errors="surrogatepass")
    marks = data.draw(st.lists(st.integers(1, max(1, len(encoded))), max_size=8).map(sorted))
    bounds = [0, *marks, len(encoded)]
    pieces = [encoded[a:b] for a, b in itertools.pairwise(bounds) if a < b]
    shown = encoded.decode(errors="replace")
    tokens = answer_tokens(answer(shown, [piece.decode(errors="replace") for piece in pieces] + ["<|end|>"]))
    assert "".join(token.text for token in tokens) == shown
    if pieces:
        assert abs(sum(token.logprob for token in tokens) + 0.5 * (len(pieces) + 1)) < 1e-6
    assert tokens[-1].spelled.endswith("<|end|>")


def test_tokens_know_what_was_forced_and_what_ended_the_answer() -> None:
    """A token in a forced range is forced; the end token has no text; a skipped special token spoils nothing."""
    tokens = answer_tokens(answer("ab c", ["ab", "<|x|>", " c", "<|end|>"], ((0, 2),)))
    assert [(token.text, token.forced) for token in tokens] == [("ab", True), ("", False), (" c", False), ("", False)]
    assert tokens[1].spelled == "<|x|>"
    assert tokens[0].top == (("ab", -0.5), ("no", -2.0))


def test_a_token_that_a_stop_string_cut() -> None:
    """Of the last token only what stayed in the text is shown."""
    tokens = answer_tokens(answer("one tw", ["one", " two", " three"]))
    assert [token.text for token in tokens] == ["one", " tw", ""]


def test_without_texts_there_are_no_tokens() -> None:
    """Log-probabilities without their tokens' text cannot be laid over an answer."""
    plain = answer("ab", ["ab"])
    assert answer_tokens(plain)
    assert answer_tokens(answer("ab", [])) == ()
    assert answer_tokens(msgspec.structs.replace(plain, logprobs=(TokenLogprob(1, -1.0),))) == ()
