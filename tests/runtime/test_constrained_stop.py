"""Stop strings in constrained text."""

from __future__ import annotations

import pytest
from tests.fake_runner import VOCABULARY, token
from tests.fakes import make_request

from palmette.constrained import Grammar, compile_grammar
from palmette.runtime.constrained_stop import stop_is_legal


@pytest.mark.parametrize(
    ("pattern", "stop", "spelled", "legal"),
    [
        ("[ab. ]*", (".",), "a.", True),
        ("[ab]+[.][ab]+", (".",), "a.", False),  # "a" alone does not match
        ("[ab]*", ("b",), "b", True),
        ("[ab]+", ("b",), "b", False),  # nothing would be left
        ("[ab]+", ("b",), "ab", True),
        ("(ab)+", ("b",), "ab", False),
        ("(ab)+", ("ab",), "ab|ab", True),  # after the first one
        ("[abc]+[.]", ("c.",), "c.", False),
        ("[abc]+[.]?", ("c.",), "a|c.", True),
        ("[abc]+[.]?", (".",), "a|c.", True),  # within a token
        ("[abc]{3}[.]?", (".",), "a|c.", False),
        ("[ab]*", ("x",), "a", True),
        ("[ab]*", (), "a", True),
    ],
)
def test_only_where_the_grammar_accepts(pattern: str, stop: tuple[str, ...], spelled: str, legal: bool) -> None:
    """A stop string may end the text exactly where the text before it matches in full."""
    tokens = [token(part) for parts in spelled.split("|") for part in _tokens(parts)]
    request = make_request("r", [3], stop=stop)
    request.matcher = compile_grammar(Grammar.regex(pattern), VOCABULARY).matcher()
    for token_id in tokens[:-1]:
        request.matcher.accept(token_id)
        request.append(token_id)
        request.text.push(token_id)
    state = request.matcher.state
    assert stop_is_legal(request, tokens[-1]) is legal
    assert request.matcher.state == state


def _tokens(text: str) -> list[str]:
    """`text` as one token where it is one, else character by character."""
    return [text] if len(text) == 1 or text in ("ab", "c.") else list(text)


def test_without_a_grammar_every_stop_string_counts() -> None:
    """An unconstrained text may end anywhere."""
    assert stop_is_legal(make_request("r", [3], stop=(".",)), token("."))


@pytest.mark.parametrize(
    ("pattern", "stop_regex", "spelled", "legal"),
    [
        ("[ab. ]*", r"[.]", "a.", True),
        ("[ab]+[.][ab]+", r"[.]", "a.", False),
        ("(ab)+", "ba?b", "ab|ab", False),  # "a" alone does not match
        ("(ab)+", "(ab){2}", "ab|ab", False),  # nothing would be left
        ("(ab)+", "abb|bab|ab$", "ab|ab", False),
        ("[abc]+[.]?", r"\.", "a|c.", True),  # within a token
    ],
)
def test_patterns_too_only_where_the_grammar_accepts(pattern: str, stop_regex: str, spelled: str, legal: bool) -> None:
    """A match may end the text exactly where the text before it matches the grammar in full."""
    tokens = [token(part) for parts in spelled.split("|") for part in _tokens(parts)]
    request = make_request("r", [3], stop_regex=(stop_regex,))
    request.matcher = compile_grammar(Grammar.regex(pattern), VOCABULARY).matcher()
    for token_id in tokens[:-1]:
        request.matcher.accept(token_id)
        request.append(token_id)
        request.text.push(token_id, may_stop=False)
    assert stop_is_legal(request, tokens[-1]) is legal
