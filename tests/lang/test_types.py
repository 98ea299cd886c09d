"""Python types as answers: their grammars, and how their text is read."""

from __future__ import annotations

import datetime as dt
import enum
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict, TypeVar

import annotated_types
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constrained.reference import BYTES, accepts, walk
from tests.lang.test_partial_json import partial_value

from palmette.constrained import Grammar, compile_grammar
from palmette.lang.errors import UnsupportedTypeError
from palmette.lang.types import JsonAnswer, answer_type

T = TypeVar("T")
Count = NewType("Count", int)
UUID = "6f6ab2c4-1234-4abc-8def-0123456789ab"


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Circle:
    radius: float


@dataclass(frozen=True)
class Square:
    side: float
    color: Color = Color.RED


@dataclass
class Drawing:
    title: str
    shapes: list[Circle | Square]
    tags: dict[str, int] = field(default_factory=dict)
    parent: Drawing | None = None


class Movie(TypedDict):
    name: str
    year: NotRequired[int]


class Names(TypedDict):
    build: int
    where: int
    cls: int


class Point(NamedTuple):
    x: int
    y: int = 0


class Cat(msgspec.Struct, tag=True):
    lives: Annotated[int, msgspec.Meta(ge=0, le=9, description="lives left")]


class Dog(msgspec.Struct, tag=True, rename="camel"):
    good_boy: bool = True


class Owner(pydantic.BaseModel):
    name: str
    friends: list[Owner] = []


class Open(pydantic.BaseModel, extra="allow"):
    name: str


@dataclass
class Page(Generic[T]):
    items: list[T]


@dataclass
class Visit:
    owner: Owner
    pet: Cat | Dog
    grade: Literal[1, 2, "best"]


@dataclass
class Event:
    when: dt.datetime


@dataclass
class Strange:
    part: bytes


@dataclass
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


def compiled(annotation: Any) -> Any:
    return compile_grammar(answer_type(annotation).grammar, BYTES)


CASES: list[tuple[Any, str, Any]] = [
    (int, "-12", -12),
    (int, "3.0", 3),
    (int, "123456789012345678.0", 123456789012345678),
    ("int", "7", 7),
    (Count, "7", 7),
    (float, "1", 1.0),
    (float, "1.5e3", 1500.0),
    (bool, "true", True),
    (None, "null", None),
    (str, '"a\\n界"', "a\n界"),
    (Literal["a", "b c"], "b c", "b c"),
    (Literal[1, True, None], "true", True),
    (Literal[1, "1"], '"1"', "1"),
    (Literal["", "x"], '""', ""),
    (Color, "blue", Color.BLUE),
    (Level, "2", Level.HIGH),
    (Annotated[Literal["a", "b"], "a letter"], "a", "a"),
    (Literal[Color.RED, 2], "red", Color.RED),
    (list[Color], '["red"]', [Color.RED]),
    (list, '[1,"a"]', [1, "a"]),
    (Sequence[int], "[1,2]", [1, 2]),
    (set[int], "[1,2]", {1, 2}),
    (frozenset[Color], '["red"]', frozenset({Color.RED})),
    (Annotated[set[int], annotated_types.MinLen(2)], "[3,1]", {1, 3}),
    (Annotated[tuple[int, ...], msgspec.Meta(max_length=2)], "[1,2]", (1, 2)),
    (Annotated[dict[str, int], msgspec.Meta(min_length=2)], '{"a":1,"b":2}', {"a": 1, "b": 2}),
    (dict[Literal["a", "b"], int], '{"b":1}', {"b": 1}),
    (dict[Color, int], '{"red":1}', {Color.RED: 1}),
    (dict[dt.date, str], '{"2024-02-29":"leap"}', {dt.date(2024, 2, 29): "leap"}),
    (Event, '{"when":"2024-02-29T23:59:59Z"}', Event(dt.datetime(2024, 2, 29, 23, 59, 59, tzinfo=dt.UTC))),
    (dt.date, '"0001-12-31"', dt.date(1, 12, 31)),
    (dt.time, '"10:00:00.5+02:00"', dt.time(10, 0, 0, 500_000, tzinfo=dt.timezone(dt.timedelta(hours=2)))),
    (dt.timedelta, '"P1DT2H3M"', dt.timedelta(days=1, hours=2, minutes=3)),
    (uuid.UUID, f'"{UUID}"', uuid.UUID(UUID)),
    (Decimal, '"-12.50"', Decimal("-12.50")),
    (dict[str, list[int]], '{"a":[1]}', {"a": [1]}),
    (dict, '{"a":null}', {"a": None}),
    (Any, '[{"a":1.5}]', [{"a": 1.5}]),
    (tuple[int, str], '[1,"a"]', (1, "a")),
    (tuple[int, ...], "[1,2,3]", (1, 2, 3)),
    (tuple[()], "[]", ()),
    (Optional[int], "null", None),  # noqa: UP045 (the old spelling is under test)
    (float | int, "1", 1),
    (int | str | None, '"x"', "x"),
    (Annotated[int, msgspec.Meta(ge=1)] | None, "5", 5),
    (Annotated[int | None, annotated_types.Gt(3)], "4", 4),
    (Annotated[str, pydantic.Field(pattern="^[ab]+$", max_length=3)], '"ab"', "ab"),
    (Annotated[list[int], msgspec.Meta(min_length=1)], "[1]", [1]),
    (Circle | Square, '{"side":2,"color":"blue"}', Square(2.0, Color.BLUE)),
    (Square, '{"side":2}', Square(2.0)),
    (
        Drawing,
        '{"title":"t","shapes":[{"radius":1},{"side":2}],"parent":{"title":"p","shapes":[]}}',
        Drawing("t", [Circle(1.0), Square(2.0)], {}, Drawing("p", [])),
    ),
    (Movie, '{"name":"n"}', {"name": "n"}),
    (Movie, '{"name":"n","year":1999}', {"name": "n", "year": 1999}),
    (Names, '{"build":1,"where":2,"cls":3}', {"build": 1, "where": 2, "cls": 3}),
    (Point, "[1]", Point(1)),
    (Cat, '{"type":"Cat","lives":9}', Cat(9)),
    (Cat | Dog, '{"type":"Dog","goodBoy":false}', Dog(False)),
    (Owner, '{"name":"a","friends":[{"name":"b"}]}', Owner(name="a", friends=[Owner(name="b")])),
    (list[Owner], '[{"name":"a"}]', [Owner(name="a")]),
    (pydantic.TypeAdapter(dict[str, int]), '{"a":1}', {"a": 1}),
    (Page[Point], '{"items":[[1,2]]}', Page([Point(1, 2)])),
    (
        Visit,
        '{"owner":{"name":"a"},"pet":{"type":"Cat","lives":1},"grade":"best"}',
        Visit(Owner(name="a"), Cat(1), "best"),
    ),
]


@pytest.mark.parametrize(("annotation", "text", "value"), CASES)
def test_an_answer_is_allowed_and_read(annotation: Any, text: str, value: Any) -> None:
    """The grammar of a type allows the text, and the text is read as a value of the type."""
    answer = answer_type(annotation)
    assert accepts(compiled(annotation), text)
    read = answer.read(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "1" * 19),
        (int, "1.5"),
        (Literal["a"], '"a"'),
        (Level, "3"),
        (Square, "{}"),
        (Square, '{"side":1,"extra":1}'),
        (Movie, '{"name":"n","extra":1}'),
        (Cat, '{"type":"Dog","lives":1}'),
        (Cat, '{"type":"Cat","lives":10}'),
        (Owner, '{"name":"a","extra":1}'),
        (Owner, '{"name":"a","friends":[{"name":"b","extra":1}]}'),
        (tuple[int, str], "[1]"),
        (Point, "[1,2,3]"),
        (list[int], '["a"]'),
        (Annotated[str, msgspec.Meta(max_length=2)], '"abc"'),
        (Annotated[list[int], msgspec.Meta(min_length=1)], "[]"),
        (set[int], "[1,1]"),
        (set[float], "[1,1.0]"),
        (Annotated[dict[str, int], msgspec.Meta(min_length=2)], '{"a":1,"a":2}'),
        (Annotated[dict[str, int], msgspec.Meta(min_length=2)], '{"a":1}'),
        (dict[Literal["a", "b"], int], '{"c":1}'),
        (dt.date, '"2023-02-29"'),
        (dt.datetime, '"0000-01-01T00:00:00Z"'),
        (dt.datetime, '"2016-12-31T23:59:60Z"'),
        (dt.datetime, '"2016-12-31T23:59:59"'),
        (dt.timedelta, '"P1W"'),
        (uuid.UUID, '"6f6ab2c4"'),
        (Decimal, '"1e5"'),
    ],
)
def test_other_answers_are_not_allowed(annotation: Any, text: str) -> None:
    """Objects are closed, required members are there, bounds hold: the model cannot write anything else."""
    assert not accepts(compiled(annotation), text)


def test_an_open_model_stays_open() -> None:
    """A Pydantic model that allows extra members gets them."""
    assert accepts(compiled(Open), '{"name":"a","x":[1]}')
    assert answer_type(Open).read('{"name":"a","x":[1]}').x == [1]


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_whatever_the_grammar_allows_can_be_read(data: st.DataObject) -> None:
    """A walk through the grammar of a type, brought to an end, is an answer that its reader takes."""
    types: list[Any] = [
        Drawing,
        Movie,
        Point,
        Cat | Dog,
        Page[Point],
        Level,
        Visit,
        tuple[int, bool],
        Event,
        dict[Color, set[int]],
    ]
    types += [dt.date, dt.time, dt.timedelta, uuid.UUID, Decimal]
    annotation = data.draw(st.sampled_from(types))
    grammar = compiled(annotation)
    state, text = walk(grammar, lambda allowed: data.draw(st.sampled_from(allowed)), 30)
    answer = answer_type(annotation)
    if isinstance(answer, JsonAnswer):
        partial_value(text.decode(errors="ignore"))
    answer.read((text + bytes(grammar.shortest_ending(state))).decode())


@pytest.mark.parametrize(
    ("annotation", "text", "message"),
    [
        (int, "x", "the answer is not JSON"),
        (int, "NaN", "the answer holds NaN"),
        (int, "true", r"\$: Expected `int`, got `bool`"),
        (Color, "green", "expected one of 'red', 'blue', not 'green'"),
        (Drawing, '{"title":"t","shapes":[{"side":"x"}]}', r"\$.shapes\[0\]: fits none of Circle \| Square: Circle"),
        (Square, '{"color":"red"}', r"\$: the object for Square lacks \['side'\]"),
        (Square, '{"side":1,"x":2}', r"has the unknown keys \['x'\]"),
        (Square, '{"side":1,"color":"green"}', r'\$.color: expected one of "red", "blue", not "green"'),
        (Owner, '{"name":1}', r"\$\['name'\]: Input should be a valid string"),
        (tuple[int, int], "[1]", r"\$: expected an array of 2 elements, not \[1\]"),
        (Even, '{"number":3}', r"\$: 3 is odd"),
        (set[Any], "[[1]]", r"\$: unhashable|\$: cannot use"),
        (Any, "[" * 100_000, "nests too deeply"),
    ],
)
def test_a_wrong_answer_is_an_error_with_its_place(annotation: Any, text: str, message: str) -> None:
    """A backend that does not hold to the grammar is found out where the value is read."""
    with pytest.raises(ValueError, match=message):
        answer_type(annotation).read(text)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (Strange, r"^field 'part' of Strange: bytes is no type that an answer can have. Allowed are str, int"),
        (list[Strange], "field 'part' of Strange"),
        (dict[int, str], "has keys that are no strings"),
        (dict[str | None, str], "has keys that are no strings"),
        (Annotated[Decimal, msgspec.Meta(ge=0)], "takes no constraints such as 'ge'"),
        (complex, "complex is no type"),
        (Page, "field 'items' of Page: T is a type variable"),
        ("integer", "must be one of int, float, bool, str, not 'integer'"),
        (list["Nowhere"], "is a name that stands for no type here"),  # type: ignore[name-defined]  # noqa: F821
        (Annotated[str, msgspec.Meta(ge=1)], "has constraints that do not fit"),
        (Annotated[Color, msgspec.Meta(min_length=1)], "takes no constraints such as 'min_length'"),
        (Literal[b"x"], "holds b'x'"),
        (pydantic.dataclasses.dataclass(Even), "Pydantic dataclass; use a BaseModel, or type=pydantic.TypeAdapter"),
        (len, "is no type"),
        (3, "3 is no type"),
    ],
)
def test_other_types_are_refused_with_their_place(annotation: Any, message: str) -> None:
    """What cannot be an answer is a TypeError that names the part and what is allowed."""
    with pytest.raises(UnsupportedTypeError, match=message) as raised:
        answer_type(annotation)
    assert isinstance(raised.value, TypeError)


def test_names_that_cannot_be_evaluated_are_refused() -> None:
    """A class inside a function may name itself, but no other local class."""

    @dataclass
    class Leaf:
        value: int

    @dataclass
    class Chain:
        next: Chain | None = None

    @dataclass
    class Tree:
        leaf: Leaf

    assert answer_type(Chain).read('{"next":{}}') == Chain(Chain())
    with pytest.raises(UnsupportedTypeError, match=r"annotations that cannot be evaluated .*top of its module"):
        answer_type(Tree)


def test_types_are_kept() -> None:
    """The same type gives the same object; two classes of one name have definitions of their own."""
    assert answer_type(Drawing) is answer_type(Drawing)
    assert answer_type("bool") is answer_type(bool)
    other: Any = dataclass(type("Circle", (), {"__annotations__": {"inner": Circle}}))
    schema = json.loads(answer_type(other).grammar.source)
    assert sorted(schema["$defs"]) == ["Circle", "Circle_2"]


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (int, "int"),
        (dict[str, list[Circle | None]], "dict[str, list[Circle | None]]"),
        (tuple[Point, ...], "tuple[Point, ...]"),
        (Literal["a", 1], "Literal['a', 1]"),
        (Page[Annotated[int, "x"]], "Page[int]"),
        (Annotated[list[Any], "x"], "list[Any]"),
        (Optional[int], "int | None"),  # noqa: UP045 (the old spelling is under test)
    ],
)
def test_types_are_named_as_one_writes_them(annotation: Any, name: str) -> None:
    """Names have no modules, so that a person and a model can read them."""
    assert answer_type(annotation).name == name


def test_descriptions_reach_the_schema() -> None:
    """What `Annotated` says of a part stands in the schema, for models that are shown it."""
    schema = json.loads(answer_type(Cat).grammar.source)
    assert schema["$defs"]["Cat"]["properties"]["lives"]["description"] == "lives left"
    assert answer_type(Annotated[int, "a year"]).grammar == Grammar.json_schema(
        {"type": "integer", "minimum": -(10**18 - 1), "maximum": 10**18 - 1, "description": "a year"}
    )
