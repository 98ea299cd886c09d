"""The official JSON-Schema-Test-Suite for draft 2020-12, read from the shared folder beside the repository."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.constrained.json_acceptance import SchemaGrammar
from tests.constrained.shared_data import DATA, read_lines

from palmette.constrained import CompileLimits, GrammarError, UnsatisfiableGrammarError

LIMITS = CompileLimits(seconds=5)
GROUPS_THAT_COMPILE = 380  # of 461; the others are refused by name

ANNOTATING = "format"  # the keyword whose groups want `format` to be an annotation, unlike those of each format

# Groups on which we differ by policy: an unknown `$schema` is read as that of 2020-12, whatever its vocabularies are.
POLICIES = {"draft2020-12/vocabulary#0"}

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the shared data is not at {DATA}")


def wrong_answers(group: dict[str, Any], counts: Counter[str]) -> list[Any]:
    """The instances of `group` on which its grammar differs from the suite; counts its outcome."""
    try:
        grammar = SchemaGrammar(group["schema"], LIMITS, formats=group["keyword"] != ANNOTATING)
    except UnsatisfiableGrammarError:
        counts["compiled"] += 1  # the answer is that nothing is valid
        return [(group["id"], test) for test in group["tests"] if test["valid"]]
    except GrammarError as error:
        counts[type(error).__name__] += 1
        return []
    counts["compiled"] += 1
    return [(group["id"], test) for test in group["tests"] if grammar.accepts_value(test["data"]) != test["valid"]]


def test_suite() -> None:
    """No group that compiles accepts an invalid instance or rejects a valid one, and most groups compile."""
    counts: Counter[str] = Counter()
    wrong = []
    for group in read_lines("jsts_draft2020-12.jsonl"):
        if group["id"] not in POLICIES:
            wrong += wrong_answers(group, counts)
    print(f"groups: {dict(counts)}")
    assert not wrong
    assert counts["compiled"] >= GROUPS_THAT_COMPILE
