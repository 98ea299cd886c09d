"""From a frozen grammar to one that gives masks."""

from __future__ import annotations

from functools import cache

import numpy as np

from .automaton import LazyAutomaton
from .collector import UNCOLLECTED
from .compiled import CompiledGrammar
from .distinct_grammar import DistinctGrammar, needs_memory
from .ebnf import lower_ebnf
from .errors import UnsatisfiableGrammarError
from .grammar import Grammar
from .json_options import options_of
from .json_schema import lower_json_schema
from .lark import lower_lark
from .limits import DEFAULT_LIMITS, CompileLimits, Deadline
from .program import Program, build_program
from .reasoning import lower_reasoning
from .regex import lower_regex
from .rules import (
    ALL_BYTES,
    Choice,
    Except,
    Literal,
    Repeat,
    Rules,
    Sequence,
    byte_set,
    is_productive_leaf,
    rules_that_hold,
)
from .simplify import simplify
from .structural_tag import lower_structural_tag
from .vocabulary import Vocabulary
from .wire_source import read_source


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
    warm_up()
    return _compile(grammar, vocabulary, limits, plain=False)


def compile_plain(
    grammar: Grammar, vocabulary: Vocabulary, *, limits: CompileLimits = DEFAULT_LIMITS
) -> CompiledGrammar:
    """`compile_grammar` without numba, for short texts now and then: see plain_machine.py. Raises the same."""
    return _compile(grammar, vocabulary, limits, plain=True)


@cache
def warm_up() -> None:
    """Have the automaton's loops compiled (half a minute, once a machine) or loaded (a second, once a process).

    `compile_grammar` does it before its time limit begins to run; a server does it before it says that it is ready.
    """
    vocabulary = Vocabulary([b"a", b"b", b"ab"])
    words = Except(Repeat(byte_set(b"ab"), 1, None), frozenset({b"a", b"b"}))
    rules = Rules("start", {"start": Sequence((words, Repeat(Literal(b"b"), 0, 2000)))})
    limits = CompileLimits(seconds=float("inf"))
    automaton = LazyAutomaton(build_program(rules, limits, Deadline(limits)), limits, range(256))
    state = automaton.start
    path = np.zeros(vocabulary.longest + 1, np.int32)
    for _ in range(1200):  # enough to make every array larger
        state = automaton.step(state, ord("b"))
    automaton.walk_mask(vocabulary.trie, state, path, np.zeros(vocabulary.words, np.uint32))
    automaton.walk_landing(vocabulary.trie, state, path, np.zeros(3, np.int32))


def make_program(
    grammar: Grammar, alphabet: int, limits: CompileLimits, deadline: Deadline, *, simple: bool = False
) -> Program:
    """The program of `grammar` over the bytes of `alphabet`: the part in plain Python, which another process can do.

    Args:
        grammar, alphabet, limits, deadline: as of `compile_grammar`; bit b of `alphabet` is byte b.
        simple: simplify the rules first, which `compile_program` asks for where it must be.

    Raises what `compile_grammar` does.
    """
    with UNCOLLECTED:
        rules = lower_and_simplify(grammar, alphabet, limits, deadline)
        if simple:
            rules = simplify(rules, alphabet, limits)
        return build_program(rules, limits, deadline, alphabet)


def compile_program(
    grammar: Grammar, program: Program, vocabulary: Vocabulary, limits: CompileLimits, *, plain: bool = False
) -> CompiledGrammar | None:
    """What `make_program` has made for `vocabulary`, ready to use; None where it has to be made `simple` first.

    That is where nothing matches, which `simplify` says better, or where counted rounds may be empty. After `warm_up`
    nearly all of it is in compiled loops that release the GIL.

    Args:
        grammar, vocabulary, limits: as of `compile_grammar`.
        program: is the compiled grammar's own from now on.
        plain: do without numba.

    Raises:
        GrammarLimitError: it is larger than `limits`.
    """
    automaton = LazyAutomaton(program, limits, vocabulary.preferred_bytes, alphabet=vocabulary.alphabet, plain=plain)
    if not automaton.is_ready():
        return None
    kind = DistinctGrammar if needs_memory(automaton) else CompiledGrammar
    return kind(grammar, vocabulary, automaton)


def lower_and_simplify(grammar: Grammar, alphabet: int, limits: CompileLimits, deadline: Deadline) -> Rules:
    """Rules of `grammar` without left recursion, simplified where that took it.

    Raises what `compile_grammar` does.
    """
    rules = lower(grammar, limits, deadline)
    deadline.check()
    if grammar.kind not in _NEVER_LEFT_RECURSIVE:
        rules = simplify(rules, alphabet, limits)
        rules.verify()
        deadline.check()
    return rules


_NEVER_LEFT_RECURSIVE = frozenset({"regex", "json_schema", "choices"})
"""Kinds whose front ends make no rule that calls itself before a byte is taken; others are verified."""


def _compile(grammar: Grammar, vocabulary: Vocabulary, limits: CompileLimits, *, plain: bool) -> CompiledGrammar:
    deadline = Deadline(limits)
    with UNCOLLECTED:
        for simple in (False, True):
            program = make_program(grammar, vocabulary.alphabet, limits, deadline, simple=simple)
            compiled = compile_program(grammar, program, vocabulary, limits, plain=plain)
            deadline.check()
            if compiled is not None:
                return compiled
    raise UnsatisfiableGrammarError("nothing matches this grammar")


def check_grammar(grammar: Grammar, limits: CompileLimits = DEFAULT_LIMITS) -> None:
    """Find most of what is wrong with `grammar` before there is a vocabulary, in milliseconds and without numba.

    Raises what `compile_grammar` does, except where only the automaton can tell that nothing matches.
    """
    rules = lower(grammar, limits, Deadline(limits))
    if rules.start not in rules_that_hold(rules.rules, is_productive_leaf):
        simplify(rules, ALL_BYTES, limits)  # raises, and says where the contradiction is


def lower(grammar: Grammar, limits: CompileLimits, deadline: Deadline) -> Rules:
    """The rules of `grammar` as its front end makes them, not simplified yet. They hold for any vocabulary."""
    match grammar.kind:
        case "regex":
            return lower_regex(grammar.source, limits, deadline)
        case "json_schema":
            return lower_json_schema(grammar.source, limits, deadline, options_of(grammar.options))
        case "choices":
            return lower_choices(grammar.source, limits)
        case "ebnf":
            return lower_ebnf(grammar.source, limits, deadline)
        case "lark":
            return lower_lark(grammar.source, limits, deadline)
        case "structural_tag":
            return lower_structural_tag(grammar.source, limits, deadline)
        case "reasoning":
            return lower_reasoning(grammar.source, limits, lambda inner: lower(inner, limits, deadline))


def lower_choices(source: str, limits: CompileLimits) -> Rules:
    """Rules of exactly the strings of the JSON array `source`."""
    limits.check("source_chars", len(source), "characters of the choices")
    choices = read_source(source, "choices")
    Grammar.choices(choices)  # what came over a wire has not been built there
    return Rules(
        "start", {"start": Choice(tuple(Literal(choice.encode("utf-8", "surrogatepass")) for choice in choices))}
    )
