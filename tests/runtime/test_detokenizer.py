"""Incremental text: whole characters, no part of a stop string, and nothing taken back."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from palmette.constrained.stop_pattern import StopPatterns, stop_patterns
from palmette.runtime.detokenizer import OutputText

_SCRIPTS = st.text(
    st.one_of(
        st.sampled_from('ab \n"é߿ßжщאבعر한글日本語ไทยहिन्दी𝒜𐍈☃️'),
        st.sampled_from("😀👩‍👩‍👧‍👦🏳️‍🌈🇫🇷👍🏽"),
        st.characters(codec="utf-8"),
    ),
    max_size=24,
)
_BYTES = st.one_of(
    _SCRIPTS.map(str.encode),
    st.binary(max_size=16),
    st.lists(
        st.sampled_from([b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xe2\x82", b"\xac", b"\xc0", b"\xed\xa0", b"a"])
    ).map(b"".join),
)
_CUTS = st.lists(st.integers(1, 6), min_size=1, max_size=8)
_SHORT = st.text("abc", min_size=1, max_size=4)
_STOPS = st.lists(_SHORT, max_size=4)


def _split(data: bytes, sizes: list[int]) -> list[bytes]:
    """Cut into tokens of the given sizes, over and over."""
    tokens: list[bytes] = []
    while data:
        size = sizes[len(tokens) % len(sizes)]
        tokens.append(data[:size])
        data = data[size:]
    return tokens


def _stream(tokens: list[bytes], stop: list[str], patterns: StopPatterns | None = None) -> tuple[OutputText, list[str]]:
    """Push tokens until a match, then finish; the text object and all that was shown."""
    text = OutputText(tokens, stop, patterns)
    deltas: list[str] = []
    for token_id in range(len(tokens)):
        deltas.append(text.push(token_id))
        if text.matched is not None:
            break
    deltas.append(text.finish())
    return text, deltas


def _expected(tokens: list[bytes], stop: list[str]) -> tuple[str, str | None]:
    """Text and matched stop, decoded anew from the start after every token."""
    for count in range(1, len(tokens) + 1):
        whole = b"".join(tokens[:count]).decode()
        found = [(whole.find(s), order) for order, s in enumerate(stop) if s in whole]
        if found:
            start, order = min(found)
            return whole[:start], stop[order]
    return b"".join(tokens).decode(), None


@given(_BYTES, _CUTS)
@example("😀".encode()[:3], [1])
@example(b"\xf0\x9f\x98A", [3])
def test_deltas_join_to_the_whole_decoding(data: bytes, sizes: list[int]) -> None:
    """In any script, over any token boundaries and invalid bytes too, the deltas equal decoding all bytes at once."""
    text, deltas = _stream(_split(data, sizes), [])
    assert "".join(deltas) == text.text == data.decode(errors="replace")
    assert text.kept_ids == (tuple(range(len(_split(data, sizes)))), "")


@given(_SCRIPTS, _CUTS)
def test_never_half_a_character(whole: str, sizes: list[int]) -> None:
    """Everything shown at any time is a beginning of the final text, without replacement characters of its own."""
    text = OutputText(_split(whole.encode(), sizes), [])
    for token_id in range(len(_split(whole.encode(), sizes))):
        text.push(token_id)
        assert whole.startswith(text.text)


@given(_BYTES, _CUTS, st.lists(st.text("a€😀�", min_size=1, max_size=3), max_size=3))
def test_a_shown_delta_is_never_taken_back(data: bytes, sizes: list[int], stop: list[str]) -> None:
    """What was shown is a beginning of the final text, and neither it nor what follows holds a stop string."""
    text, deltas = _stream(_split(data, sizes), stop)
    assert "".join(deltas) == text.text
    assert data.decode(errors="replace").startswith(text.text)
    assert not any(s in text.text for s in stop)


@given(st.text("abc", max_size=16), _CUTS, _STOPS)
@example("xxabcabd", [1], ["abcabe", "abd"])
def test_stop_strings_equal_a_search_after_every_token(whole: str, sizes: list[int], stop: list[str]) -> None:
    """Stops across tokens, overlapping ones and prefixes of one another are found as a plain search finds them."""
    tokens = _split(whole.encode(), sizes)
    text, deltas = _stream(tokens, stop)
    assert ("".join(deltas), text.matched) == _expected(tokens, stop)


@given(st.text("ab€😀", max_size=12), _CUTS, st.lists(st.text("ab€😀", min_size=1, max_size=2), min_size=1, max_size=3))
def test_kept_ids_and_tail_spell_the_text(whole: str, sizes: list[int], stop: list[str]) -> None:
    """The kept tokens' bytes and the tail are exactly the text, and no further token fits before a match's cut."""
    tokens = _split(whole.encode(), sizes)
    text, _ = _stream(tokens, stop)
    kept, tail = text.kept_ids
    spelled = b"".join(tokens[: len(kept)])
    assert kept == tuple(range(len(kept)))
    assert spelled + tail.encode() == text.text.encode()
    if tail:
        longer = [b"".join(tokens[:n]) for n in range(len(kept) + 1, len(tokens) + 1)]
        assert not any(text.text.encode().startswith(spelling) and _is_whole(spelling) for spelling in longer)


def _is_whole(data: bytes) -> bool:
    return "�" not in data.decode(errors="replace")


def test_the_earliest_start_wins_then_the_list_order() -> None:
    """One token that completes several stops is cut at the first start; equal starts are decided by the list."""
    first, _ = _stream([b"xbcd"], ["cd", "bc"])
    assert (first.text, first.matched) == ("x", "bc")
    second, _ = _stream([b"xabc"], ["abc", "ab"])
    assert (second.text, second.matched) == ("x", "abc")
    third, _ = _stream([b"xabc"], ["ab", "abc"])
    assert (third.text, third.matched) == ("x", "ab")


def test_held_back_text_is_shown_as_soon_as_it_cannot_be_a_stop() -> None:
    """Only the end that may still become a stop string waits."""
    text = OutputText([b"one\n", b"\n", b"two"], ["\n\nUser"])
    assert [text.push(0), text.push(1), text.push(2)] == ["one", "", "\n\ntwo"]
    assert text.finish() == ""


def test_without_stop_strings_nothing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ordinary request pays for decoding only."""
    monkeypatch.setattr(OutputText, "_first_match", None)
    monkeypatch.setattr(OutputText, "_held_from", None)
    text, deltas = _stream([b"one ", b"\xf0\x9f", b"\x98\x80"], [])
    assert deltas == ["one ", "", "\U0001f600", ""]
    assert text.text == "one \U0001f600"


def test_finish_gives_back_what_was_held() -> None:
    """An end that only looked like a stop string belongs to the text, once."""
    text = OutputText([b"a ST"], ["STOP"])
    assert [text.push(0), text.finish(), text.finish()] == ["a ", "ST", ""]
    assert (text.text, text.matched) == ("a ST", None)


def test_nothing_comes_after_a_match() -> None:
    """Tokens after a stop string change nothing."""
    text = OutputText([b"aSTOPb", b"c"], ["STOP"])
    assert [text.push(0), text.push(1), text.finish()] == ["a", "", ""]
    assert (text.text, text.matched, text.kept_ids) == ("a", "STOP", ((), "a"))


def test_a_cut_between_tokens_leaves_no_tail() -> None:
    """Where the stop string is a token of its own, the kept tokens are the text."""
    text, _ = _stream([b"one", b" two", b"STOP"], ["STOP"])
    assert text.kept_ids == ((0, 1), "")


def test_special_and_unknown_tokens_add_no_text() -> None:
    """A special token has no bytes; it does not disturb a character that is half there."""
    text = OutputText([b"\xe2\x82", None, b"\xac"], [])
    assert [text.push(token_id) for token_id in (0, 1, 99, 2)] == ["", "", "", "€"]
    assert text.finish() == ""


def test_a_stop_that_may_not_end_the_text_is_text() -> None:
    """Inside an incomplete grammar a stop string is shown; the next one that may stop does."""
    text = OutputText([b"xSTOP", b"ySTOP"], ["STOP"])
    assert text.push(0, may_stop=False) == "xSTOP"
    assert (text.push(1), text.matched, text.text) == ("y", "STOP", "xSTOPy")


def test_an_empty_stop_string_is_refused() -> None:
    """An empty stop string would end every text at once."""
    with pytest.raises(ValueError, match="must not be empty"):
        OutputText([], ["a", ""])


def test_a_stop_string_that_was_ordinary_text_stays_so() -> None:
    """A stop string refused when it came is not found later, though it is held back as the beginning of another."""
    output = OutputText([b"a", b"b", b"z"], ["abc", "b"])
    assert output.push(0) == ""
    assert output.push(1, may_stop=False) == ""
    assert output.push(2) == "abz"
    assert output.matched is None


def _first_match(whole: str, patterns: tuple[str, ...]) -> tuple[int, int] | None:
    """The match that is complete first, of those the one that begins first, by trying every part of the text."""
    for end in range(1, len(whole) + 1):
        for start in range(end):
            if any(re.fullmatch(pattern, whole[start:end]) for pattern in patterns):
                return start, end
    return None


@given(st.text("abc€", max_size=14), _CUTS, st.sampled_from([("ab+c",), ("a[bc]{2}", "cc"), ("(ab|b)c", "a€")]))
def test_stop_patterns_equal_a_search_of_every_part(whole: str, sizes: list[int], patterns: tuple[str, ...]) -> None:
    """A match across any tokens ends the text before itself, and what was shown is never taken back."""
    text, deltas = _stream(_split(whole.encode(), sizes), [], stop_patterns(patterns))
    expected = _first_match(whole, patterns)
    if expected is None:
        assert ("".join(deltas), text.matched) == (whole, None)
    else:
        start, end = expected
        assert ("".join(deltas), text.text, text.matched) == (whole[:start], whole[:start], whole[start:end])


def test_text_that_may_become_a_match_is_held_back() -> None:
    """Nothing of a possible match is shown, and all of it as soon as it can be none."""
    text = OutputText([b"see 12", b"3", b"4-", b"x"], [], stop_patterns((r"\d+-\d",)))
    assert [text.push(0), text.push(1), text.push(2), text.push(3)] == ["see ", "", "", "1234-x"]


def test_a_string_and_a_pattern_together() -> None:
    """Of both kinds in one token the one that begins first wins; a string wins over a pattern at the same place."""
    patterns = stop_patterns(("b+c",))
    assert _stream([b"xabbc"], ["ab"], patterns)[0].matched == "ab"
    assert _stream([b"xbbcab"], ["ab"], patterns)[0].matched == "bbc"
    assert _stream([b"xbc"], ["b"], patterns)[0].matched == "b"


def test_a_pattern_that_needs_the_end_is_found_at_the_end() -> None:
    """`$` is known when the text is finished; where the text must not end there, it is ordinary text."""
    patterns = stop_patterns(("[.]+$",))
    text, deltas = _stream([b"a.b.", b"."], [], patterns)
    assert (deltas, text.text, text.matched) == (["a.b", "", ""], "a.b", "..")
    kept = OutputText([b"a."], [], patterns)
    assert [kept.push(0), kept.finish(may_stop=False), kept.matched] == ["a", ".", None]


def test_a_match_that_may_not_end_the_text_is_text() -> None:
    """A match refused when it was complete is shown once nothing can come of it, and the next one counts."""
    text = OutputText([b"xab", b"c", b"ab"], [], stop_patterns(("ab",)))
    assert text.push(0, may_stop=False) + text.push(1) == "xabc"
    assert (text.push(2), text.matched, text.text) == ("", "ab", "xabc")


@given(st.text("ab€😀", max_size=10), _CUTS, st.lists(st.text("ab€", min_size=1, max_size=2), max_size=2))
def test_dropped_bytes_foretell_the_cut(whole: str, sizes: list[int], stop: list[str]) -> None:
    """Before each token it is known what a stop would take from the text, and asking changes nothing."""
    tokens = _split(whole.encode(), sizes)
    text = OutputText(tokens, stop, stop_patterns(("b€+a",)))
    for token_id in range(len(tokens)):
        dropped = text.dropped_bytes(token_id)
        assert text.dropped_bytes(token_id) == dropped
        text.push(token_id)
        assert (dropped is None) == (text.matched is None)
        if dropped is not None:
            assert len(b"".join(tokens[: token_id + 1])) - dropped == len(text.text.encode())
            return
