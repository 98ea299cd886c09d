"""The official JSON-Schema-Test-Suite for draft 2020-12, read from the shared folder beside the repository."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.constrained.json_acceptance import SchemaGrammar
from tests.constrained.shared_data import DATA, read_lines

from palmette.constrained import CompileLimits, GrammarError, UnsatisfiableGrammarError

LIMITS = CompileLimits(seconds=5)
GROUPS_THAT_COMPILE = 430  # of 461; the others are refused by name

ANNOTATING = "format"  # the keyword whose groups want `format` to be an annotation, unlike those of each format

# Groups some of whose valid instances we reject, and why; none of their invalid ones is accepted.
REJECTED = {
    "draft2020-12/vocabulary#0": "an unknown `$schema` is read as that of 2020-12, whatever its vocabularies are",
    "draft2020-12/optional/float-overflow#0": "numbers have a bounded exponent where they are multiples of something",
    "draft2020-12/optional/format/hostname#1": "whether labels in another script, `xn--...`, are legal is in tables",
    "draft2020-12/optional/format/ecmascript-regex#3": "named groups, whose names must differ, are left out",
}

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
    judged = [test for test in group["tests"] if not (test["valid"] and group["id"] in REJECTED)]
    return [(group["id"], test) for test in judged if grammar.accepts_value(test["data"]) != test["valid"]]


def test_suite() -> None:
    """No group that compiles accepts an invalid instance or rejects a valid one, and most groups compile."""
    counts: Counter[str] = Counter()
    wrong = []
    for group in read_lines("jsts_draft2020-12.jsonl"):
        wrong += wrong_answers(group, counts)
    print(f"groups: {dict(counts)}")
    assert not wrong
    assert counts["compiled"] >= GROUPS_THAT_COMPILE
