"""What keeps compiling cheap: shared nodes and rules, pruned conjunctions, and a collector that waits."""

from __future__ import annotations

import gc
from decimal import Decimal
from threading import Barrier, Thread
from typing import Any

import pytest

from palmette.constrained import Grammar, GrammarLimitError, Vocabulary, compile_grammar
from palmette.constrained.char_dfa import CharDfa, intersection, minimised, pattern_dfa, words_dfa
from palmette.constrained.collector import Uncollected
from palmette.constrained.compiler import lower
from palmette.constrained.json_numbers import Bounds, NumberSet, lower_number
from palmette.constrained.limits import DEFAULT_LIMITS, Deadline
from palmette.constrained.program import build_program
from palmette.constrained.regex_parser import parse_regex
from palmette.constrained.rules import NOTHING, Choice, Literal, Node, RuleRef, Rules, Sequence, postorder

BYTES = Vocabulary([bytes([byte]) for byte in range(256)], end_ids=[256], size=257)


def accepts(schema: object, text: str) -> bool:
    """Whether the grammar of `schema` accepts `text`."""
    compiled = compile_grammar(Grammar.json_schema(schema), BYTES)
    state: int | None = compiled.start
    for byte in text.encode():
        assert state is not None
        state = compiled.advance(state, byte)
        if state is None:
            return False
    return state is not None and compiled.is_accepting(state)


def rules_of(schema: object) -> Rules:
    """The rules of `schema`."""
    return lower(Grammar.json_schema(schema), DEFAULT_LIMITS, Deadline(DEFAULT_LIMITS))


def positions(rules: Rules) -> int:
    """How many positions the program of `rules` has."""
    return len(build_program(rules, DEFAULT_LIMITS, Deadline(DEFAULT_LIMITS)).positions)


def nested(levels: int) -> Node:
    """A node that stands for exponentially many places."""
    node: Node = Literal(b"a")
    for _ in range(levels):
        node = Sequence((node, node))
    return node


def test_nodes_are_walked_once_however_often_they_are_shared() -> None:
    """Sixty levels, each with the one below it twice, are sixty-one nodes, children first."""
    order = postorder(nested(60))
    assert len(order) == 61
    places = {id(node): index for index, node in enumerate(order)}
    assert all(
        places[id(part)] < places[id(node)] for node in order if isinstance(node, Sequence) for part in node.parts
    )


def test_the_same_node_before_the_same_rest_is_placed_once() -> None:
    """Options that share a node do not copy it."""
    shared = Sequence((Literal(b"long text"), RuleRef("start")))
    once = Rules("start", {"start": Choice((shared, Literal(b"x")))})
    twice = Rules("start", {"start": Choice((shared, Literal(b"x"), shared))})
    assert positions(twice) == positions(once)


def test_a_number_with_bounds_is_one_rule_wherever_it_stands() -> None:
    """A second property of the same kind adds its name, not its digits."""
    number = {"type": "number", "minimum": -12.5, "maximum": 317.25}
    one = rules_of({"type": "object", "properties": {"a": number}, "required": ["a"]})
    two = rules_of({"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]})
    assert positions(two) - positions(one) < 20


def test_common_rules_are_flattened_as_those_of_the_grammar_itself() -> None:
    """Programs with and without common rules accept the same; see `Rules.common`."""
    rules = rules_of({"type": "object", "properties": {"a": True}})
    plain = Rules(rules.start, rules.rules)
    first, second = (build_program(each, DEFAULT_LIMITS, Deadline(DEFAULT_LIMITS)) for each in (rules, plain))
    assert rules.common
    assert len(first.positions) >= len(second.positions)
    again = build_program(rules, DEFAULT_LIMITS, Deadline(DEFAULT_LIMITS))
    assert (again.positions == first.positions).all()
    assert again.positions is not first.positions


@pytest.mark.parametrize(
    ("multiples", "others"), [((12,), (6,)), ((4, 6), (12,)), ((Decimal("7.5"),), (Decimal("2.5"),))]
)
def test_multiples_of_what_must_not_divide_them_are_nothing(
    multiples: tuple[Decimal, ...], others: tuple[Decimal, ...]
) -> None:
    """It is seen before any automaton is made."""
    numbers = NumberSet(Bounds(), None, tuple(map(Decimal, multiples)), tuple(map(Decimal, others)))
    assert lower_number(numbers) == NOTHING


def test_divisors_that_others_imply_change_nothing() -> None:
    """What is no multiple of 2 is no multiple of 4 either."""
    schema = {"type": "integer", "allOf": [{"not": {"multipleOf": 2}}, {"not": {"multipleOf": 4}}]}
    assert [accepts(schema, text) for text in ("3", "2", "4", "5.0")] == [True, False, False, True]


@pytest.mark.parametrize("pattern", ["^a[bc]*$", "b", "^.{2,4}$", "^$", "[^a]c"])
def test_intersections_are_exact(pattern: str) -> None:
    """An automaton of three is the conjunction of them on all short texts."""
    tree = parse_regex(pattern, "ecma", DEFAULT_LIMITS)
    parts: list[CharDfa] = [
        pattern_dfa(tree, search=True),
        words_dfa(["ab", "bc"]).complement(),
        pattern_dfa(parse_regex("c|b|^$", "ecma", DEFAULT_LIMITS), search=True),
    ]
    both = intersection(parts)
    texts = [""]
    for text in texts:
        if len(text) < 4:
            texts.extend(text + char for char in "abcd")
    assert all(both.accepts(text) == all(part.accepts(text) for part in parts) for text in texts)
    assert len(minimised(both).steps) == len(both.steps)


def test_equal_schemas_in_two_places_contradict_each_other() -> None:
    """What holds in one place cannot fail in another: no combinations of their parts are made."""
    deep = {"type": "array", "items": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}}
    schema = {"allOf": [deep, {"oneOf": [{"not": deep}, {"type": "array", "maxItems": 1}]}]}
    assert accepts(schema, '[{"a":1}]')
    assert not accepts(schema, '[{"a":1},{"a":2}]')
    assert len(rules_of(schema).rules) < 25


@pytest.mark.parametrize("start", [0, 1])
def test_counts_that_every_element_or_none_adds_to_are_lengths(start: int) -> None:
    """`not items` among elements that all fail it is a lower bound on their number."""
    items: dict[str, Any] = {"items": {"type": "string"}}
    schema: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "not": items}
    if start:
        schema = {
            "type": "array",
            "prefixItems": [True],
            "items": {"type": "integer"},
            "not": {"prefixItems": [True], **items},
        }
    enough = ",".join(["1"] * (start + 1))
    assert accepts(schema, f"[{enough}]")
    assert not accepts(schema, "[" + ",".join(["1"] * start) + "]")


def test_schemas_that_combine_in_too_many_ways_are_named() -> None:
    """The error comes in seconds and says which keywords it is about."""
    options = [
        {
            "required": [f"a{index}", f"b{index}"],
            "properties": {f"a{index}": {"minimum": index}, f"c{index}": {"minItems": 3}},
        }
        for index in range(12)
    ]
    with pytest.raises(GrammarLimitError, match="'oneOf'"):
        compile_grammar(Grammar.json_schema({"type": "object", "oneOf": options}), BYTES)


def test_the_collector_waits_until_the_last_thread_is_out() -> None:
    """It is off while any thread is inside, and on again afterwards; one that was off stays off."""
    pause = Uncollected()
    inside, done = Barrier(2), Barrier(2)

    def stay() -> None:
        with pause:
            inside.wait(60)
            done.wait(60)

    thread = Thread(target=stay)
    thread.start()
    inside.wait(60)
    with pause:
        assert not gc.isenabled()
    assert not gc.isenabled()
    done.wait(60)
    thread.join(60)
    assert gc.isenabled()
    gc.disable()
    try:
        with pause:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
