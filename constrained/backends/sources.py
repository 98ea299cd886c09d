"""What a grammar says, for engines that read it themselves."""

from __future__ import annotations

import json

from palmette.constrained.errors import UnsupportedGrammarError
from palmette.constrained.grammar import Grammar


def schema_text(backend: str, grammar: Grammar) -> str:
    """The JSON Schema of a grammar of that kind, as JSON.

    Raises:
        UnsupportedGrammarError: it has options other than the defaults, which are Palmette's own.
    """
    if grammar.options:
        raise UnsupportedGrammarError(
            f"the grammar backend {backend!r} does not take options of JSON Schema ({grammar.options}); native does"
        )
    return grammar.source


def choices_of(grammar: Grammar) -> list[str]:
    """The choices of a grammar of that kind."""
    return list(json.loads(grammar.source))


def ebnf_of(grammar: Grammar) -> tuple[str, str]:
    """The text of an EBNF grammar, and the name of the rule that it starts at."""
    spec = json.loads(grammar.source)
    return spec["ebnf"], spec["root"]


def lark_of(grammar: Grammar) -> tuple[str, str]:
    """The text of a Lark grammar, and the name of the rule that it starts at."""
    spec = json.loads(grammar.source)
    return spec["lark"], spec["start"]


def refuse_kind(backend: str, grammar: Grammar) -> UnsupportedGrammarError:
    """The error of a backend that does not know the kind of `grammar`, or this form of it."""
    return UnsupportedGrammarError(
        f"the grammar backend {backend!r} does not take grammars of the kind {grammar.kind!r} as this one; native does"
    )
