"""Grammars compiled by other engines: the same interface, the same law of masks."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from palmette.constrained import (
    GRAMMAR_BACKENDS,
    Grammar,
    GrammarBackendError,
    GrammarError,
    MaskTable,
    TokenGrammar,
    TokenRejectedError,
    UnsupportedGrammarError,
    Vocabulary,
    grammar_backend,
)
from palmette.constrained.backends.text_states import TextStateGrammar
from palmette.constrained.limits import DEFAULT_LIMITS

PACKAGES = {"outlines": "outlines_core", "llguidance": "llguidance", "xgrammar": "xgrammar"}

SPECIAL = 300
END, OTHER_END = 301, 302
WORDS = [b"ab", b"abc", b'{"', b'":', b"12", b"true", "é".encode(), b"no", b"yes"]
VOCABULARY = Vocabulary(
    [*(bytes([b]) for b in range(256)), *WORDS, *[None] * (SPECIAL - 256 - len(WORDS)), None, None, None],
    end_ids=[END, OTHER_END],
    size=330,
)


def installed(name: str) -> bool:
    return name == "native" or importlib.util.find_spec(PACKAGES[name]) is not None


ALL = [
    pytest.param(name, marks=pytest.mark.skipif(not installed(name), reason=f"{name} is not installed"))
    for name in GRAMMAR_BACKENDS
]
FOREIGN = ALL[1:]
MATCHERS_ONLY = ALL[2:]


def compiled(name: str, grammar: Grammar) -> TokenGrammar:
    return grammar_backend(name).compile(grammar, VOCABULARY, DEFAULT_LIMITS)


def allowed(mask: NDArray[np.uint32]) -> set[int]:
    """Token ids of a mask."""
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def by_bytes(grammar: TokenGrammar, text: str) -> bool:
    """Whether the grammar accepts a whole text, spelled in single bytes."""
    state = grammar.start
    for byte in text.encode():
        following = grammar.advance(state, byte)
        if following is None:
            return False
        state = following
    return grammar.is_accepting(state)


TEXTS = {
    Grammar.regex("a(b|é)*c"): (["ac", "abbc", "abéc"], ["", "a", "ac c", "abcb"]),
    Grammar.regex(r"[^/\n]{1,3}/"): (["a/", "é/"], ["/", "a//", "\n/"]),
    Grammar.choices(["yes", "no", 'say "no"', "a\\n"]): (["yes", "no", 'say "no"', "a\\n"], ["ye", "a\n", "maybe"]),
    Grammar.json_schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}): (
        ['{"n":12}', '{"n": 7}', '{"n":0}'],
        ['{"n":true}', "{}", "[]", '{"n":12'],
    ),
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("grammar", TEXTS, ids=lambda grammar: grammar.kind)
def test_texts(name: str, grammar: Grammar) -> None:
    """Every backend takes regular expressions, choices and JSON Schema, and reads these alike."""
    right, wrong = TEXTS[grammar]
    automaton = compiled(name, grammar)
    assert [text for text in right if not by_bytes(automaton, text)] == []
    assert [text for text in wrong if by_bytes(automaton, text)] == []


@pytest.mark.parametrize("name", ALL)
def test_masks_are_what_can_be_advanced(name: str) -> None:
    """A bit is set exactly where `advance` goes on; end tokens exactly where the text may end; nothing past them."""
    grammar = compiled(name, Grammar.regex("a(b|c|é)*"))
    matcher = grammar.matcher()
    for token_id in [ord("a"), ord("b"), 256 + WORDS.index("é".encode()), ord("c")]:
        mask = matcher.mask()
        assert (mask.dtype, mask.shape) == (np.dtype(np.uint32), (VOCABULARY.words,))
        assert not mask.flags.writeable
        ends = {END, OTHER_END} if matcher.is_accepting else set()
        steps = {i for i in range(VOCABULARY.words * 32) if grammar.advance(matcher.state, i) is not None}
        assert allowed(mask) == steps | ends
        matcher.accept(token_id)
    assert matcher.is_accepting
    matcher.accept(OTHER_END)
    assert matcher.finished


@pytest.mark.parametrize("name", ALL)
def test_matchers_copy_and_roll_back(name: str) -> None:
    """Copies are independent, and a text that was rolled back may go another way."""
    matcher = compiled(name, Grammar.regex("(ab|12)+c")).matcher()
    matcher.accept(256)  # ab
    other = matcher.copy()
    other.accept(ord("c"))
    assert (other.finished, matcher.finished) == (True, False)
    with pytest.raises(TokenRejectedError):
        other.accept(ord("c"))
    matcher.rollback(1)
    assert not matcher.is_accepting
    matcher.accept(ord("1"))
    assert allowed(matcher.mask()) == {ord("2")}


@pytest.mark.parametrize("name", MATCHERS_ONLY)
def test_forced_bytes(name: str) -> None:
    """What the engine knows to be forced is told, never past a place where the text may end."""
    grammar = compiled(name, Grammar.regex("abc(12)?"))
    assert grammar.forced_bytes(grammar.start) == b"abc"
    matcher = grammar.matcher()
    matcher.accept(256 + WORDS.index(b"abc"))
    assert matcher.forced_bytes() == b""


@pytest.mark.parametrize("name", FOREIGN)
def test_endings_are_not_known(name: str) -> None:
    """They say so, instead of a guess."""
    grammar = compiled(name, Grammar.regex("abc"))
    assert not grammar.always_completes
    for question in (grammar.shortest_ending, grammar.ending_bytes, lambda state: grammar.mask_within(state, 9)):
        with pytest.raises(UnsupportedGrammarError, match="how far the end"):
            question(grammar.start)


@pytest.mark.parametrize("name", FOREIGN)
def test_wrong_grammars(name: str) -> None:
    """The engine's own complaint, in one line of ours."""
    with pytest.raises(GrammarError, match=f"^{name}: ") as caught:
        compiled(name, Grammar.regex("a("))
    assert "<state>" not in str(caught.value)
    with pytest.raises(UnsupportedGrammarError, match=f"backend '{name}' does not take grammars of the kind 'reason"):
        compiled(name, Grammar.reasoning(Grammar.regex("a")))


@pytest.mark.parametrize("name", MATCHERS_ONLY)
def test_ebnf(name: str) -> None:
    """Engines with grammars of their own take EBNF."""
    grammar = compiled(name, Grammar.ebnf('root ::= "[" root? "]" | word\nword ::= [a-c]+'))
    assert by_bytes(grammar, "[[abc]]")
    assert not by_bytes(grammar, "[[abc]")


@pytest.mark.skipif(not installed("llguidance"), reason="llguidance is not installed")
def test_lark() -> None:
    """llguidance reads Lark itself, from the rule that it calls start."""
    source = 'start: "<" word ">"\nword: /[a-c]+/'
    assert by_bytes(compiled("llguidance", Grammar.lark(source)), "<abc>")
    with pytest.raises(UnsupportedGrammarError, match="of the kind 'lark'"):
        compiled("llguidance", Grammar.lark(source, start="word"))


@pytest.mark.skipif(not installed("xgrammar"), reason="xgrammar is not installed")
def test_structural_tags() -> None:
    """XGrammar reads structural tags itself."""
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "yes"}}
    grammar = compiled("xgrammar", Grammar.structural_tag(tag))
    assert (by_bytes(grammar, "yes"), by_bytes(grammar, "no")) == (True, False)


@pytest.mark.parametrize("name", FOREIGN)
def test_options_of_json_are_ours(name: str) -> None:
    """Another spelling of JSON than the engine's own is refused, not ignored."""
    with pytest.raises(UnsupportedGrammarError, match=r"does not take options of JSON Schema .*key_order"):
        compiled(name, Grammar.json_schema({"type": "integer"}, key_order="any"))


@pytest.mark.skipif(not installed("outlines"), reason="outlines is not installed")
def test_outlines_cannot_leave_an_accepting_state_for_another_kind() -> None:
    """The reason why outlines-core is an oracle only; were it repaired, this test would say so."""
    pattern = Grammar.regex(r"[0-9]+(\.[0-9]+)?")
    assert by_bytes(compiled("native", pattern), "12.5")
    assert not by_bytes(compiled("outlines", pattern), "12.5")


@pytest.mark.parametrize("name", FOREIGN)
def test_vocabulary_that_cannot_spell_it(name: str) -> None:
    """A dead end is an error when it is compiled or met, never an empty mask."""
    letters = Vocabulary([b"a", b"b", None], end_ids=[2])

    def meet_the_end() -> None:
        matcher = grammar_backend(name).compile(Grammar.regex("az"), letters, DEFAULT_LIMITS).matcher()
        matcher.accept(0)
        matcher.mask()

    with pytest.raises(GrammarError):
        meet_the_end()


def test_unknown_names() -> None:
    """The names there are, and the one that was meant."""
    with pytest.raises(GrammarBackendError, match="native, outlines, llguidance, xgrammar; did you mean 'llguidance'"):
        grammar_backend("llguidence")


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says what to install."""
    grammar_backend.cache_clear()
    monkeypatch.setitem(sys.modules, "outlines_core", None)
    monkeypatch.delitem(sys.modules, "palmette.constrained.backends.outlines", raising=False)
    with pytest.raises(GrammarBackendError, match=r"'outlines' needs a package .*pip install 'palmette\[grammars\]'"):
        grammar_backend("outlines")
    monkeypatch.undo()


class CountingMatcher:
    """a* as an engine's matcher that counts how often it moved."""

    moves = 0

    def fork(self) -> CountingMatcher:
        return CountingMatcher()

    def accept(self, token_id: int) -> bool:
        CountingMatcher.moves += 1
        return token_id == ord("a")

    def is_accepting(self) -> bool:
        return True

    def allowed(self) -> NDArray[np.uint32]:
        bits = np.zeros(VOCABULARY.words + 1, np.uint32)
        bits[ord("a") // 32] = 1 << (ord("a") % 32)
        bits[-2:] = 0xFFFFFFFF
        return bits

    def forced_bytes(self) -> bytes:
        return b"a"


def test_states_forget_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for few matchers, old states are made again from their tokens; new ones cost one move each."""
    monkeypatch.setattr("palmette.constrained.backends.text_states.MATCHERS_KEPT", 4)
    grammar = TextStateGrammar("counting", Grammar.regex("a*"), VOCABULARY, CountingMatcher())
    matcher = grammar.matcher()
    before = CountingMatcher.moves
    for _ in range(50):
        matcher.accept(ord("a"))
    assert CountingMatcher.moves == before + 50
    matcher.rollback(30)
    assert allowed(matcher.mask()) == {ord("a"), END, OTHER_END}
    assert CountingMatcher.moves == before + 70
    assert grammar.forced_bytes(matcher.state) == b""
    with pytest.raises(ValueError, match="no state that this grammar has given"):
        grammar.advance(12345, ord("a"))


@pytest.mark.parametrize("name", ALL)
def test_mask_table(name: str) -> None:
    """Rows serve grammars of every backend."""
    grammar = compiled(name, Grammar.regex("ab|12"))
    table = MaskTable(4, VOCABULARY)
    table.acquire(grammar, grammar.start)
    updates = table.take_updates()
    assert updates is not None
    assert np.array_equal(updates[1][0], grammar.mask(grammar.start))
