"""What `gen(type=...)` stands on: from a Python type to the grammar of its answers and the reader of their text."""

from __future__ import annotations

import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from palmette.constrained.grammar import Grammar

from .annotations import shape_of
from .errors import UnsupportedTypeError
from .partial_json import PartialJSON
from .shapes import ConstantsShape, DescribedShape, Named, Shape, document

__all__ = ["AnswerType", "JsonAnswer", "PartialReader", "UnsupportedTypeError", "WordAnswer", "answer_type"]

_NAMED_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}


class PartialReader(Protocol):
    """Reads an answer that comes in pieces."""

    def push(self, text: str) -> None:
        """Take the next piece.

        Raises:
            ValueError: no answer begins with what came so far.
        """

    @property
    def value(self) -> Any:
        """What is certain of the value so far; None while nothing is."""


class AnswerType(ABC):
    """How answers of one type are written and read.

    Attributes:
        name: the type as a person would write it.
        grammar: what the model is held to.
    """

    name: str
    grammar: Grammar

    @abstractmethod
    def read(self, text: str) -> Any:
        """The value of a whole answer.

        Raises:
            ValueError: `text` is no answer of this type; the message says what is wrong, and where.
        """

    @abstractmethod
    def partial_reader(self) -> PartialReader:
        """A new reader of an answer that comes in pieces.

        Its value is what is certain, and None while nothing is. Objects are plain dicts with the members that have
        begun, and arrays are lists: a dataclass or model is built of whole answers only.
        """

    def read_partial(self, text: str) -> Any:
        """What is certain of the value when `text` is how the answer begins, as `partial_reader` has it.

        Raises:
            ValueError: no answer begins with `text`.
        """
        reader = self.partial_reader()
        reader.push(text)
        return reader.value


@dataclass(frozen=True, slots=True)
class JsonAnswer(AnswerType):
    """Answers that are JSON."""

    name: str
    grammar: Grammar
    shape: Shape

    @classmethod
    def of(cls, shape: Shape) -> JsonAnswer:
        """The answers of `shape`."""
        return cls(shape.name, Grammar.json_schema(document(shape)), shape)

    def read(self, text: str) -> Any:
        try:
            return self.shape.read(_decoded(text), "$")
        except RecursionError:
            raise ValueError(f"the answer nests too deeply to be read as {self.name}") from None

    def partial_reader(self) -> PartialReader:
        return PartialJSON()


@dataclass(frozen=True, slots=True)
class WordAnswer(AnswerType):
    """Answers that are one of some words, written without quotes."""

    name: str
    grammar: Grammar
    words: Mapping[str, Any]

    def read(self, text: str) -> Any:
        if text not in self.words:
            raise ValueError(f"expected one of {', '.join(map(repr, self.words))}, not {text!r}")
        return self.words[text]

    def partial_reader(self) -> PartialReader:
        return PartialWord(self.words)


class PartialWord:
    """Reads one of `words` in pieces; its value is known once only one word begins with what came."""

    def __init__(self, words: Mapping[str, Any]) -> None:
        self._words = words
        self._text = ""

    def push(self, text: str) -> None:
        self._text += text
        if not self._possible():
            raise ValueError(f"none of {', '.join(map(repr, self._words))} begins with {self._text!r}")

    @property
    def value(self) -> Any:
        possible = self._possible()
        return self._words[possible[0]] if len(possible) == 1 else None

    def _possible(self) -> list[str]:
        return [word for word in self._words if word.startswith(self._text)]


def answer_type(annotation: Any) -> AnswerType:
    """The answers of a Python type.

    Answers are JSON, except that a `Literal` or Enum as the whole type is written bare: its strings without quotes. A
    `str` is written in quotes and read without them. These types are allowed, nested and recursive:

    - str, int, float, bool and None, with constraints as ``Annotated[int, msgspec.Meta(ge=0)]``. An int without
      constraints has at most 18 digits, so that it ends.
    - ``Literal[...]`` and Enum, by value; unions: the first member that fits is taken, float after int.
    - list, set, tuple and dict with str keys. Elements of a set may come twice in the JSON.
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
        if annotation not in _NAMED_TYPES:
            names = ", ".join(_NAMED_TYPES)
            raise UnsupportedTypeError(f"the name of a type must be one of {names}, not {annotation!r}")
        annotation = _NAMED_TYPES[annotation]
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
    bare = shape
    while isinstance(bare, Named | DescribedShape):
        bare = bare.target if isinstance(bare, Named) else bare.inner
    words = _words(bare) if isinstance(bare, ConstantsShape) else None
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
