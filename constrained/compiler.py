"""From a frozen grammar to one that gives masks."""

from __future__ import annotations

import json
from collections.abc import Sequence

from .automaton import LazyAutomaton
from .compiled import CompiledGrammar
from .ebnf import lower_ebnf
from .grammar import Grammar
from .json_schema import lower_json_schema
from .limits import DEFAULT_LIMITS, CompileLimits, Deadline
from .program import build_program
from .reasoning import lower_reasoning
from .regex import lower_regex
from .rules import Choice, Literal, Rules
from .simplify import simplify
from .structural_tag import lower_structural_tag
from .vocabulary import Vocabulary


def compile_grammar(
    grammar: Grammar, vocabulary: Vocabulary, *, limits: CompileLimits = DEFAULT_LIMITS
) -> CompiledGrammar:
    """Compile `grammar` for the tokens of `vocabulary`. Safe to call from several threads at once.

    Raises:
        UnsupportedGrammarError: it uses a feature that is refused by name.
        UnsatisfiableGrammarError: no text matches it, or none that this vocabulary can spell.
        GrammarLimitError: it is larger than `limits`.
        GrammarError: it is not legal.
    """
    automaton = make_automaton(grammar, vocabulary.alphabet, vocabulary.preferred_bytes, limits)
    return CompiledGrammar(grammar, vocabulary, automaton)


def make_automaton(
    grammar: Grammar, alphabet: int, preferred_bytes: Sequence[int], limits: CompileLimits
) -> LazyAutomaton:
    """The automaton of `grammar` over the bytes of `alphabet`; see `compile_grammar` and `LazyAutomaton`."""
    deadline = Deadline(limits)
    rules = simplify(lower(grammar, limits, deadline), alphabet, limits)
    deadline.check()
    rules.verify()
    deadline.check()
    program = build_program(rules, limits, deadline)
    deadline.check()
    return LazyAutomaton(program, limits, preferred_bytes)


def lower(grammar: Grammar, limits: CompileLimits, deadline: Deadline) -> Rules:
    """The rules of `grammar` as its front end makes them, not simplified yet. They hold for any vocabulary."""
    match grammar.kind:
        case "regex":
            return lower_regex(grammar.source, limits, deadline)
        case "json_schema":
            return lower_json_schema(grammar.source, limits, deadline)
        case "choices":
            return lower_choices(grammar.source, limits)
        case "ebnf":
            return lower_ebnf(grammar.source, limits, deadline)
        case "structural_tag":
            return lower_structural_tag(grammar.source, limits, deadline)
        case "reasoning":
            return lower_reasoning(grammar.source, limits, lambda inner: lower(inner, limits, deadline))


def lower_choices(source: str, limits: CompileLimits) -> Rules:
    """Rules of exactly the strings of the JSON array `source`."""
    limits.check("source_chars", len(source), "characters of the choices")
    choices = json.loads(source)
    return Rules(
        "start", {"start": Choice(tuple(Literal(choice.encode("utf-8", "surrogatepass")) for choice in choices))}
    )
