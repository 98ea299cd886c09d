"""What `gen(type=...)` stands on: from a Python type to the grammar of its answers and the reader of their text."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palmette.constrained.grammar import Grammar

from .annotations import shape_of
from .errors import UnsupportedTypeError
from .shapes import ConstantsShape, ScalarShape, Shape, bare, document

NAMED_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
"""The types that may be given by their names."""


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """Answers that are JSON.

    Attributes:
        name: the type as a person would write it.
        grammar: what the model is held to.
        shape: what the JSON is read by.
    """

    name: str
    grammar: Grammar
    shape: Shape

    @classmethod
    def of(cls, shape: Shape) -> JsonAnswer:
        """The answers of `shape`."""
        return cls(shape.name, Grammar.json_schema(document(shape)), shape)

    def read(self, text: str) -> Any:
        """The value of a whole answer.

        Raises:
            ValueError: `text` is no answer of this type; the message says what is wrong, and where.
        """
        try:
            return self.shape.read(_decoded(text), "$")
        except RecursionError:
            raise ValueError(f"the answer nests too deeply to be read as {self.name}") from None

    @property
    def is_string(self) -> bool:
        """Whether every answer is a JSON string."""
        shape = bare(self.shape)
        return isinstance(shape, ScalarShape) and shape.keywords.get("type") == "string"


@dataclass(frozen=True, slots=True)
class WordAnswer:
    """Answers that are one of some words, written without quotes.

    Attributes:
        name, grammar: as of `JsonAnswer`.
        words: the value that each word stands for.
    """

    name: str
    grammar: Grammar
    words: Mapping[str, Any]

    def read(self, text: str) -> Any:
        """The value of a word, as `JsonAnswer.read`."""
        if text not in self.words:
            raise ValueError(f"expected one of {', '.join(map(repr, self.words))}, not {text!r}")
        return self.words[text]


AnswerType = JsonAnswer | WordAnswer
"""How answers of one type are written and read."""


def answer_type(annotation: Any) -> AnswerType:
    """The answers of a Python type.

    Answers are JSON, except that a `Literal` or Enum as the whole type is written bare: its strings without quotes. A
    `str` is written in quotes and read without them. These types are allowed, nested and recursive:

    - str, int, float, bool and None, with constraints as ``Annotated[int, msgspec.Meta(ge=0)]``. An int without
      constraints has at most 18 digits, so that it ends.
    - ``Literal[...]`` and Enum, by value; unions: the first member that fits is taken, float after int.
    - datetime, date and time with an offset from UTC, timedelta (ISO 8601), UUID and Decimal, each a string.
    - list, set, tuple, and dict with keys that are strings, such as a `Literal` or date. In a set no element comes
      twice; lengths are held to, as ``Annotated[dict[str, int], msgspec.Meta(min_length=2)]``.
    - Dataclasses, TypedDict, NamedTuple (an array), `msgspec.Struct`, Pydantic models, and a Pydantic `TypeAdapter` as
      the whole type.
    - Any, which is any JSON.

    Objects of a class are closed, so that a model cannot invent keys, unless the class says otherwise (dict, Pydantic's
    ``extra="allow"``). Members without a default are required; members come in the order in which they are declared.

    Args:
        annotation: the type, or "int", "float", "bool" or "str".

    Raises:
        UnsupportedTypeError: the type, or a part of it, is none of these; the message names the part and its place.
    """
    if isinstance(annotation, str):
        if annotation not in NAMED_TYPES:
            names = ", ".join(NAMED_TYPES)
            raise UnsupportedTypeError(f"the name of a type must be one of {names}, not {annotation!r}")
        annotation = NAMED_TYPES[annotation]
    try:
        hash(annotation)
    except TypeError:  # metadata of Annotated may be anything
        return _made(annotation)
    return _kept(annotation)


@functools.lru_cache(maxsize=1024)
def _kept(annotation: Any) -> AnswerType:
    return _made(annotation)


def _made(annotation: Any) -> AnswerType:
    shape = shape_of(annotation)
    inner = bare(shape)
    words = _words(inner) if isinstance(inner, ConstantsShape) else None
    return JsonAnswer.of(shape) if words is None else WordAnswer(shape.name, Grammar.choices(list(words)), words)


def _words(shape: ConstantsShape) -> dict[str, Any] | None:
    """The bare text of each constant; None where two have the same, or one has none, so that quotes are needed."""
    words = {value if isinstance(value, str) else json.dumps(value): meant for value, meant in shape.values}
    return words if len(words) == len(shape.values) and "" not in words else None


def _decoded(text: str) -> Any:
    def reject(constant: str) -> Any:
        raise ValueError(f"the answer holds {constant}, which is not JSON")

    try:
        return json.loads(text, strict=False, parse_float=_number, parse_constant=reject)
    except json.JSONDecodeError as error:
        raise ValueError(f"the answer is not JSON: {error}") from error


def _number(text: str) -> float | int:
    """A number with a fraction; an integer ending in ``.0`` that a float cannot hold stays exact."""
    return int(text[:-2]) if text.endswith(".0") and len(text) > 17 else float(text)
