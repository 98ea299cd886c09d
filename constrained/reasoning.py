"""Answers of models that reason first: free text between two tags, then text of another grammar."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .embed import embed
from .free_text import free_text
from .grammar import Grammar
from .limits import CompileLimits
from .rules import Choice, Literal, Node, Repeat, RuleRef, Rules, Sequence, byte_set
from .wire_source import read_grammar, read_members

MAX_SPACE = 2
"""Characters of white space that may stand before the begin tag, and between the end tag and the answer."""

_SPACE = Repeat(byte_set(b" \t\r\n"), 0, MAX_SPACE)


def lower_reasoning(source: str, limits: CompileLimits, lower_inner: Callable[[Grammar], Rules]) -> Rules:
    """Rules of a `Grammar.reasoning`; `lower_inner` gives those of the grammar of the answer.

    Raises:
        UnsatisfiableGrammarError: nothing matches the inner grammar.
        GrammarLimitError: too large.
    """
    limits.check("source_chars", len(source), "characters of the reasoning grammar")
    spec = read_members(source, "a reasoning grammar", "begin", "end", "begun", "required", "inner")
    inner = read_grammar(spec["inner"], "the grammar after the reasoning")
    Grammar.reasoning(inner, begin=spec["begin"], end=spec["end"])  # what came over a wire has not been built there
    rules: dict[str, Node] = {}
    answer = embed(lower_inner(inner), "answer/", rules, limits)
    after = Sequence((_SPACE, answer))
    thought = free_text(rules, "reasoning", then={spec["end"]: after}, may_end=False, limits=limits)
    rules["start"] = _start(spec, thought, answer)
    return Rules("start", rules)


def _start(spec: Mapping[str, object], thought: RuleRef, answer: RuleRef) -> Node:
    if spec["begun"]:
        return thought
    reasoned = Sequence((_SPACE, Literal(str(spec["begin"]).encode()), thought))
    return reasoned if spec["required"] else Choice((reasoned, answer))
