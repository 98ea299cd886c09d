"""Keys and elements never come twice, everything else may come, and no way ends before the text does."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.constrained.reference import BYTES, token_set

from palmette.constrained import Grammar, compile_grammar
from palmette.constrained.automaton import DEAD, LazyAutomaton
from palmette.constrained.distinct import FIRST_COMBINED, Distinct
from palmette.constrained.distinct_grammar import DistinctGrammar
from palmette.constrained.errors import GrammarLimitError
from palmette.constrained.limits import DEFAULT_LIMITS, Deadline
from palmette.constrained.program import build_program
from palmette.constrained.rules import (
    EMPTY,
    OPEN_KEY,
    OPEN_OBJECT,
    UNIQUE_ARRAY,
    Choice,
    Flagged,
    Literal,
    Node,
    Repeat,
    Rules,
    Sequence,
    byte_range,
    byte_set,
    optional,
)
from palmette.constrained.simplify import simplify
from palmette.constrained.vocabulary import Vocabulary

_WORDS = [
    *(b'":', b'","', b'",', b'"a', b'"a"', b'"b":', b',"a":', b'{"', b'{"a":1', b'"}', b"[1", b"[[", b"]]", b"],["),
    *(b"true", b"true,", b",1,", b"1,2", b"1.0", b"1]", b"},{", b"ab", b'""', b',"', b'"a","a"', b"[1,1", b"\\u00"),
    *(b":[1", b'["a"', b'"]', b'"],["a"', b"fal", b"se,true", b', "'),
]
VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(128)), *_WORDS], end_ids=[200], size=201)


@dataclass(frozen=True)
class Shape:
    """A node, and where arrays in its texts must be unique: by the shape of elements or of members' values."""

    node: Node
    kind: str = "scalar"
    inside: tuple[Shape, ...] = ()


def text(value: str) -> Literal:
    """Exactly these bytes."""
    return Literal(value.encode())


def several(part: Node, low: int, high: int | None) -> Node:
    """`low` to `high` times `part` with commas between."""
    if high == 0:
        return EMPTY
    more = Repeat(Sequence((text(","), part)), max(low - 1, 0), None if high is None else high - 1)
    return Sequence((part, more)) if low else optional(Sequence((part, more)))


def array(item: Shape, low: int, high: int | None, *, unique: bool = True) -> Shape:
    """An array of `low` to `high` elements."""
    opening = Flagged(text("["), UNIQUE_ARRAY) if unique else text("[")
    node = Sequence((opening, several(item.node, low, high), text("]")))
    return Shape(node, "unique" if unique else "plain", (item,))


def pair(first: Shape, second: Shape, *, short: bool) -> Shape:
    """A unique array of two elements of their own shapes, the second optional where `short`."""
    rest = Sequence((text(","), second.node))
    parts = (Flagged(text("["), UNIQUE_ARRAY), first.node, optional(rest) if short else rest, text("]"))
    return Shape(Sequence(parts), "unique", (first, second))


def mapping(key: Node, value: Shape, low: int, high: int | None, declared: str = "") -> Shape:
    """An object of `low` to `high` keys that the rules do not name, before them perhaps one that they do."""
    member = Sequence((Flagged(Sequence((text('"'), key, text('"'))), OPEN_KEY), text(":"), value.node))
    first: Node = EMPTY
    if declared:
        own = Sequence((text(f'"{declared}":'), value.node))
        first = optional(Sequence((own, text(",")))) if low else EMPTY
    opening = Flagged(text("{"), OPEN_OBJECT)
    return Shape(Sequence((opening, first, several(member, low, high), text("}"))), "object", (value,))


def one_of(*values: str) -> Shape:
    """One of the JSON texts `values`."""
    return Shape(Choice(tuple(text(value) for value in values)))


LETTERS = byte_range(ord("a"), ord("c"))
LETTER = Choice((LETTERS, text("\\u0061")))
FREE = Shape(Sequence((text('"'), Repeat(LETTER, 0, None), text('"'))))
NUMBERS = Shape(Sequence((byte_range(ord("1"), ord("3")), optional(Literal(b".0")), optional(byte_set(b"0")))))
SCALARS = [
    one_of("true", "false"),
    one_of('"a"', '"ab"', '"b"'),
    one_of("1", "1.0", "2", "10", "1e1"),
    one_of("1", "true", '"1"', "null"),
    one_of("[1,2]", "[1]", "[2]", "[]", "[[1]]"),
    one_of('{"a":1,"b":2}', '{"b":2,"a":1}', '{"a":1}', "{}"),
    Shape(Sequence((text('"'), Repeat(LETTER, 0, 1), text('"')))),
]
KEYS: list[Node] = [byte_range(ord("a"), ord("c")), Repeat(byte_range(ord("a"), ord("b")), 0, 2), text("ab")]


def _arrays(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    return st.builds(lambda item, low, more: array(item, low, low + more), inner, st.integers(0, 2), st.integers(0, 2))


_scalars = st.sampled_from(SCALARS)
_inner = (
    _scalars
    | _arrays(_scalars)
    | st.builds(lambda item: array(item, 0, 2, unique=False), _scalars)
    | st.builds(lambda key, value: mapping(key, value, 0, 2), st.sampled_from(KEYS), _scalars)
)
finite_shapes: st.SearchStrategy[Shape] = (
    _arrays(_inner)
    | st.builds(pair, _inner, _inner, short=st.booleans())
    | st.builds(
        lambda key, value, low, more, name: mapping(key, value, low, low + more, name),
        st.sampled_from(KEYS),
        _scalars | _arrays(st.sampled_from(SCALARS[:2])),
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from(["", "z"]),
    )
)
_ANY = [FREE, NUMBERS, *SCALARS]
_FREE_KEYS: list[Node] = [Repeat(LETTERS, 0, None), Repeat(byte_set(b'abcdefgh"'[:-1]), 1, None)]
infinite_shapes: st.SearchStrategy[Shape] = st.recursive(
    st.sampled_from(_ANY[:2]),
    lambda inner: (
        st.builds(lambda item: array(item, 0, None), inner)
        | st.builds(lambda item: array(item, 2, None), inner)
        | st.builds(lambda key, value: mapping(key, value, 0, None, "z"), st.sampled_from(_FREE_KEYS), inner)
        | st.builds(lambda key, value: mapping(key, value, 2, None), st.sampled_from(_FREE_KEYS), inner)
    ),
    max_leaves=3,
)


def machine(node: Node) -> LazyAutomaton:
    """The automaton of `node` alone."""
    rules = simplify(Rules("start", {"start": node}), VOCABULARY.alphabet)
    rules.verify()
    program = build_program(rules, DEFAULT_LIMITS, Deadline(DEFAULT_LIMITS))
    return LazyAutomaton(program, DEFAULT_LIMITS, VOCABULARY.preferred_bytes)


def allowed_tokens(automaton: LazyAutomaton, state: int) -> dict[int, int]:
    """Tokens that the automaton allows, with the state after each, by trying all."""
    found = {}
    for token_id, token in enumerate(VOCABULARY.token_bytes):
        here = state
        for byte in token or b"":
            here = automaton.step(here, byte)
            if here == DEAD:
                break
        else:
            found[token_id] = here
    return found


def value_of(document: bytes) -> Any:
    """The JSON value; ValueError where a key comes twice."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("a key came twice")
        return dict(pairs)

    return json.loads(document, object_pairs_hook=members, parse_float=Decimal, parse_int=Decimal)


def as_equal(value: Any) -> Any:
    """A hashable value that is equal exactly for equal JSON."""
    if isinstance(value, list):
        return tuple(as_equal(item) for item in value)
    if isinstance(value, dict):
        return frozenset((key, as_equal(item)) for key, item in value.items())
    return type(value).__name__, value


def fits(value: Any, shape: Shape) -> bool:
    """Whether all arrays that must be unique are."""
    if shape.kind == "object":
        return all(fits(item, shape.inside[0]) for item in value.values())
    if shape.kind == "scalar":
        return True
    if shape.kind == "unique" and len({as_equal(item) for item in value}) < len(value):
        return False
    return all(fits(item, shape.inside[min(index, len(shape.inside) - 1)]) for index, item in enumerate(value))


def is_distinct(document: bytes, shape: Shape) -> bool:
    """Whether `document` repeats nothing."""
    try:
        return fits(value_of(document), shape)
    except ValueError:
        return False


def texts_of(automaton: LazyAutomaton, most: int) -> list[bytes] | None:
    """All texts of a finite automaton, or None if there are more than `most`."""
    found, todo = [], [(automaton.start, b"")]
    while todo:
        state, before = todo.pop()
        if automaton.is_accepting(state):
            found.append(before)
        if len(found) > most or len(before) > 80:
            return None
        mask = automaton.next_bytes(state)
        todo.extend((automaton.step(state, b), before + bytes([b])) for b in range(128) if mask >> b & 1)
    return found


@settings(max_examples=25)
@given(finite_shapes, st.randoms(use_true_random=False))
def test_exactly_the_tokens_that_can_be_completed_may_come(shape: Shape, choices: random.Random) -> None:
    """In a finite language, masks less what is banned hold the tokens that begin a text without duplicates."""
    automaton = machine(shape.node)
    texts = texts_of(automaton, 600)
    assume(texts is not None)
    assert texts is not None
    good = [document for document in texts if is_distinct(document, shape)]
    assume(good)
    beginnings = {document[:size] for document in good for size in range(len(document) + 1)}
    distinct = Distinct(automaton, VOCABULARY)
    for _ in range(3):
        state, before = distinct.start, b""
        while True:
            # What rules alone decide is for the rules: they must not lead where only duplicates are left.
            assume(state >= FIRST_COMBINED or before in beginnings)
            assert before in beginnings
            allowed = allowed_tokens(automaton, distinct.base(state))
            may_come = allowed.keys() - (distinct.banned(state) or frozenset())
            token_of = VOCABULARY.token_bytes
            expected = {token_id for token_id in allowed if before + (token_of[token_id] or b"") in beginnings}
            into_rules = {t for t in may_come - expected if _is_left_to_rules(distinct, state, t)}
            assume(not into_rules)
            assert may_come == expected, (before, [token_of[t] for t in may_come ^ expected])
            ending = distinct.shortest_ending_bytes(state)
            assert before + ending in good
            rest = [len(document) - len(before) for document in good if document.startswith(before)]
            assert len(ending) == min(rest)
            forced = distinct.forced_bytes(state)
            assert all(document.startswith(before + forced) for document in good if document.startswith(before))
            if not may_come:
                break
            token_id = choices.choice(sorted(may_come))
            following = distinct.advance(state, token_id)
            assert following is not None
            state, before = following, before + (token_of[token_id] or b"")
        assert before in good


def _is_left_to_rules(distinct: Distinct, state: int, token_id: int) -> bool:
    following = distinct.advance(state, token_id)
    return following is not None and following < FIRST_COMBINED


@settings(max_examples=40)
@given(infinite_shapes, st.randoms(use_true_random=False))
def test_walks_never_repeat_and_never_end_early(shape: Shape, choices: random.Random) -> None:
    """Random walks and the shortest endings after them make JSON without duplicates, whatever the masks' tokens."""
    automaton = machine(shape.node)
    distinct = Distinct(automaton, VOCABULARY)
    state, before = distinct.start, b""
    for _ in range(30):
        allowed = allowed_tokens(automaton, distinct.base(state)).keys()
        may_come = sorted(allowed - (distinct.banned(state) or frozenset()))
        if not may_come:
            break
        for token_id in allowed - set(may_come):
            assert distinct.base(state) >= 0
            assert _can_only_repeat(distinct, shape, state, token_id, before)
        token_id = choices.choice(may_come)
        following = distinct.advance(state, token_id)
        assert following is not None
        state, before = following, before + (VOCABULARY.token_bytes[token_id] or b"")
    document = before + distinct.shortest_ending_bytes(state)
    assert is_distinct(document, shape), document


def _can_only_repeat(distinct: Distinct, shape: Shape, state: int, token_id: int, before: bytes) -> bool:
    """Whether a banned token, then the automaton's own shortest ending, makes a text with a duplicate."""
    automaton = distinct._automaton
    here, document = distinct.base(state), before
    for byte in VOCABULARY.token_bytes[token_id] or b"":
        here, document = automaton.step(here, byte), document + bytes([byte])
    while not automaton.is_accepting(here):
        byte, here = automaton.ending_step(here)
        document += bytes([byte])
    return not is_distinct(document, shape)


def after(distinct: Distinct, document: str) -> int:
    """The state after `document`, taken byte by byte."""
    state = distinct.start
    for byte in document.encode():
        following = distinct.advance(state, byte)
        assert following is not None, document
        state = following
    return state


def accepts(shape: Shape, document: str) -> bool:
    """Whether `document` may be written, byte by byte, by masks less what is banned."""
    automaton = machine(shape.node)
    distinct = Distinct(automaton, VOCABULARY)
    state: int | None = distinct.start
    for byte in document.encode():
        if state is None or byte in (distinct.banned(state) or ()):
            return False
        state = distinct.advance(state, byte)
    return state is not None and automaton.is_accepting(distinct.base(state))


@cache
def _any_string() -> Node:
    plain = byte_set(set(range(0x20, 0x7F)) - set(b'"\\'))
    hexadecimal = byte_set(b"0123456789abcdefABCDEF")
    escape = Sequence((text("\\"), Choice((byte_set(b'"\\/bfnrt'), Sequence((text("u"), Repeat(hexadecimal, 4, 4)))))))
    return Sequence((text('"'), Repeat(Choice((plain, escape)), 0, None), text('"')))


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ('"a"', '"\\u0061"', True),
        ('"/"', '"\\/"', True),
        ('"\\n"', '"\\u000A"', True),
        ('"\\ud83d\\ude00"', '"\\uD83D\\uDE00"', True),
        ('"\\ud83d"', '"\\ude00"', False),
        ('"\\ud83d"', '"\\ud83d\\ude00"', False),
        ('"a"', '"A"', False),
    ],
)
def test_strings_are_their_characters(first: str, second: str, same: bool) -> None:
    """Two spellings of a string are one element."""
    assert accepts(array(Shape(_any_string()), 0, None), f"[{first},{second}]") != same


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("1", "1.0", True),
        ("10", "1e1", True),
        ("0", "-0.0", True),
        ("0", "0e7", True),
        ("1", "-1", False),
        ("100E-2", "1", True),
        ("0.1", "1e-1", True),
        ("1", "10", False),
        ("123456789012345678901234567890123456789", "123456789012345678901234567890123456788", False),
    ],
)
def test_numbers_are_their_values(first: str, second: str, same: bool) -> None:
    """Two spellings of a number are one element, and numbers that differ in their last digit are two."""
    digits = Repeat(byte_set(b"0123456789"), 1, None)
    power = Sequence((byte_set(b"eE"), optional(byte_set(b"+-")), digits))
    numbers = Sequence((optional(text("-")), digits, optional(Sequence((text("."), digits))), optional(power)))
    assert accepts(array(Shape(numbers), 0, None), f"[{first},{second}]") != same


def test_objects_are_their_members() -> None:
    """Elements that differ only in the order of their members are one."""
    objects = mapping(Repeat(LETTERS, 0, None), one_of("1", "2"), 0, None)
    assert not accepts(array(objects, 0, None), '[{"a":1,"b":2},{"b":2,"a":1}]')
    assert accepts(array(objects, 0, None), '[{"a":1,"b":2},{"b":1,"a":2}]')


def test_a_key_may_come_again_elsewhere() -> None:
    """Objects beside and inside an object have keys of their own."""
    inner = mapping(Repeat(LETTERS, 0, None), one_of("1"), 0, None)
    outer = mapping(Repeat(LETTERS, 0, None), inner, 0, None)
    assert accepts(outer, '{"a":{"a":1,"b":1},"b":{"a":1}}')
    assert not accepts(outer, '{"a":{"a":1,"b":1},"b":{"a":1},"a":{}}')


@pytest.mark.parametrize(
    ("schema", "document", "distinct"),
    [
        ({}, '{"a":1,"b":{"c":1,"a":2}}', True),
        ({}, '{"a":1,"b":{"c":1,"c":2}}', False),
        ({"properties": {"x": {"type": "integer"}}}, '{"x":1,"a":1,"a":2}', False),
        ({"patternProperties": {"(aa)+b$": {"type": "integer"}, "^x": {}}}, '{"aab":1,"aab":2}', False),
        ({"propertyNames": {"maxLength": 5, "pattern": "a"}}, '{"ab":1,"ab":2}', False),
        ({"propertyNames": {"format": "date"}}, '{"2020-01-01":1,"2020-01-01":2}', False),
        ({"minProperties": 2}, '{"ab":1,"ab":2}', False),
        ({"minProperties": 2}, '{"ab":1,"abc":2}', True),
        ({"uniqueItems": True}, '[{"a":1},{"a":1.0}]', False),
        ({"uniqueItems": True, "items": {"enum": ["a", "b", 1]}, "minItems": 3}, '["a",1,"b"]', True),
    ],
)
def test_schemas_flag_their_keys_and_arrays(schema: dict[str, Any], document: str, distinct: bool) -> None:
    """Every kind of undeclared key and unique array of a JSON schema is known here."""
    compiled = compile_grammar(Grammar.json_schema(schema), BYTES)
    follower = Distinct(compiled._automaton, BYTES)
    state: int | None = follower.start
    for byte in document.encode():
        assert state is not None
        if byte in (follower.banned(state) or ()):
            assert not distinct
            return
        state = follower.advance(state, byte)
    assert distinct


_DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
_FAR = (
    {"type": "object", "minProperties": 3, "additionalProperties": _DIGIT},
    {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "minProperties": 8},
    {"type": "object", "minProperties": 4, "propertyNames": {"pattern": "^[ab]{1,2}$"}},
    {"type": "array", "items": _DIGIT, "uniqueItems": True, "minItems": 10},
    {"type": "array", "uniqueItems": True, "minItems": 6},
)


@pytest.mark.parametrize("schema", _FAR)
@pytest.mark.parametrize("spare", [0, 6])
def test_budgets_suffice_where_many_must_differ(schema: dict[str, Any], spare: int) -> None:
    """Random walks by `mask_within` end in time without a duplicate, even with no token to spare."""
    compiled = compile_grammar(Grammar.json_schema(schema), BYTES)
    for seed in range(3):
        choices, state, before = random.Random(seed), compiled.start, b""
        left = len(compiled.shortest_ending(state)) + spare
        while left:
            bits = np.unpackbits(compiled.mask_within(state, left).view(np.uint8), bitorder="little")
            ordinary = [token_id for token_id in np.flatnonzero(bits).tolist() if token_id not in BYTES.end_ids]
            if not ordinary:
                break
            token_id = choices.choice(ordinary)
            following = compiled.advance(state, token_id)
            assert following is not None
            state, before, left = following, before + (BYTES.token_bytes[token_id] or b""), left - 1
        assert compiled.is_accepting(state), before
        value_of(before)


def test_memory_ends_with_what_it_watches() -> None:
    """States are the automaton's own until a key that rules do not name, and again after its object."""
    shape = array(mapping(Repeat(LETTERS, 1, None), one_of("1"), 0, None, "z"), 0, None, unique=False)
    distinct = Distinct(machine(shape.node), VOCABULARY)
    assert after(distinct, "[{") < FIRST_COMBINED
    assert after(distinct, '[{"ab"') >= FIRST_COMBINED
    assert after(distinct, '[{"ab":1},{') < FIRST_COMBINED
    assert distinct.banned(after(distinct, "[{")) is None


def test_only_what_matters_tells_states_apart() -> None:
    """Orders of keys, and values that need not differ, lead to one state."""
    distinct = Distinct(machine(mapping(Repeat(LETTERS, 1, None), FREE, 0, None).node), VOCABULARY)
    assert after(distinct, '{"a":"x'[:-1] + 'a","b":"') == after(distinct, '{"b":"","a":"c')


def test_forgotten_states_are_refused() -> None:
    """A state that many others followed is forgotten, and says so; a fresh walk goes on."""
    distinct = Distinct(machine(mapping(Repeat(LETTERS, 1, None), FREE, 0, None).node), VOCABULARY, capacity=4)
    old = after(distinct, '{"a":"')
    after(distinct, '{"abcabc":"')
    with pytest.raises(GrammarLimitError, match="forgotten"):
        distinct.banned(old)
    assert after(distinct, '{"a":"') != old


def test_the_ending_that_a_mask_judges_by_is_the_one_that_counts() -> None:
    """Where a token fits by the automaton's own ending, that ending is the answer to how far the end is, too."""
    schema = {"properties": {"abcde": {"type": "integer"}, "abcdf": {"enum": ["xy", "zw"]}}, "required": ["abcdf"]}
    tokens = [*(bytes([byte]) for byte in range(256)), b'abcdf":', b'"xy', b'"}', b'{"', b'zw"}']
    vocabulary = Vocabulary(tokens, end_ids=[261], size=262)
    compiled = compile_grammar(Grammar.json_schema(schema), vocabulary)
    assert isinstance(compiled, DistinctGrammar)
    draw = random.Random(1)
    for _ in range(30):
        state = compiled.start
        left = len(compiled.shortest_ending(state)) + draw.randrange(4)
        while allowed := sorted(token_set(compiled.mask_within(state, left)) - vocabulary.end_ids):
            following = compiled.advance(state, draw.choice(allowed))
            assert following is not None
            state, left = following, left - 1
            assert len(compiled.shortest_ending(state)) <= left
        assert compiled.is_accepting(state)
