"""The intermediate form, its verifier and its simplifier."""

from __future__ import annotations

import pytest

from palmette.constrained import GrammarError, UnsatisfiableGrammarError
from palmette.constrained.rules import (
    ALL_BYTES,
    EMPTY,
    NOTHING,
    ByteClass,
    Choice,
    Literal,
    Node,
    Repeat,
    RuleRef,
    Rules,
    Sequence,
    byte_range,
    optional,
    postorder,
)
from palmette.constrained.simplify import simplify

A = Literal(b"a")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({}, "no start rule"),
        ({"start": RuleRef("gone")}, "'gone', which does not exist"),
        ({"start": Repeat(A, 3, 2)}, "repeats 3 to 2 times"),
        ({"start": ByteClass(1 << 256)}, "no set of bytes"),
        ({"start": A, "dead": RuleRef("dead")}, "'dead' matches nothing"),
        ({"start": NOTHING}, "'start' matches nothing"),
        ({"start": Choice((Sequence((RuleRef("start"), A)), A))}, "left-recursive"),
        ({"start": Choice((Sequence((optional(A), RuleRef("b"), A)), A)), "b": RuleRef("start")}, "left-recursive"),
        ({"start": Repeat(RuleRef("b"), 0, None), "b": optional(RuleRef("start"))}, "left-recursive"),
    ],
)
def test_verifier(rules: dict[str, Node], message: str) -> None:
    """Whatever the automaton could not run is refused, with the rule's name."""
    with pytest.raises(GrammarError, match=message):
        Rules("start", rules).verify()


def test_aliases_are_no_left_recursion() -> None:
    """A rule that is itself or something else adds nothing, and is fine."""
    Rules("start", {"start": Choice((RuleRef("start"), A))}).verify()


def test_right_and_inner_recursion_are_fine() -> None:
    """Only recursion before the first byte is refused."""
    nested = Sequence((Literal(b"("), optional(RuleRef("start")), Literal(b")")))
    Rules("start", {"start": nested}).verify()


def test_simplify_drops_what_cannot_match() -> None:
    """Dead options, parts behind dead references, and bytes that cannot be written disappear."""
    rules = Rules(
        "start",
        {
            "start": Choice(
                (Sequence((A, RuleRef("dead"))), Sequence((optional(RuleRef("dead")), byte_range(97, 99))))
            ),
            "dead": Sequence((A, RuleRef("dead"))),
            "unused": A,
        },
    )
    assert simplify(rules, ALL_BYTES & ~(1 << 98)) == Rules("start", {"start": ByteClass(1 << 97 | 1 << 99)})


def test_simplify_names_the_contradiction() -> None:
    """The pointer of an unsatisfiable schema is the subschema that nothing matches."""
    rules = Rules("#", {"#": Sequence((A, RuleRef("#/properties/x"))), "#/properties/x": NOTHING})
    with pytest.raises(UnsatisfiableGrammarError) as caught:
        simplify(rules, ALL_BYTES)
    assert caught.value.pointer == "/properties/x"


def test_counted_rounds_are_never_empty() -> None:
    """A counted body that may be empty is rewritten so that each round takes a byte, through references too."""
    rules = Rules("start", {"start": Repeat(RuleRef("maybe"), 3, 5), "maybe": optional(A)})
    simplified = simplify(rules, ALL_BYTES)
    assert simplified.rules["start"] == Repeat(RuleRef("maybe~nonempty"), 0, 5)
    assert simplified.rules["maybe~nonempty"] == A
    nested = Rules("start", {"start": Repeat(Sequence((optional(A), Repeat(EMPTY, 2, 3))), 2, 3)})
    assert simplify(nested, ALL_BYTES).rules["start"] == Repeat(A, 0, 3)


def test_deep_nodes_are_walked_without_recursion() -> None:
    """Ten thousand nested nodes are no problem for any pass."""
    node: Node = A
    for _ in range(10_000):
        node = Sequence((node, A))
    assert len(postorder(node)) == 10_001
