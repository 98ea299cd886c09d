"""The frozen description of a grammar: what a request carries, and the key of the grammar cache."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .errors import GrammarError
from .json_options import DEFAULT_JSON_OPTIONS, Escapes, JsonOptions, KeyOrder, UnknownFormats, Whitespace, options_text

GrammarKind = Literal["regex", "json_schema", "choices", "ebnf", "lark", "structural_tag", "reasoning"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a generated text must match, in full.

    Build one with the class method of its kind. Equal grammars compile once: the value itself is the key of the cache,
    so `source` is kept in one canonical spelling.

    Attributes:
        kind: which front end reads `source`.
        source: the pattern of a regex; what describes any other kind as compact JSON, members in their given order.
        options: of a JSON schema, those of `JsonOptions` that differ from their defaults, as compact JSON; else empty.
    """

    kind: GrammarKind
    source: str
    options: str = ""

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Text that `pattern` (Python ``re`` syntax) matches in full."""
        if not isinstance(pattern, str):
            raise GrammarError(f"regex must be a string, not {type(pattern).__name__}: {pattern!r}")
        return cls("regex", pattern)

    @classmethod
    def json_schema(
        cls,
        schema: Any,
        *,
        whitespace: Whitespace = DEFAULT_JSON_OPTIONS.whitespace,
        key_order: KeyOrder = DEFAULT_JSON_OPTIONS.key_order,
        escapes: Escapes = DEFAULT_JSON_OPTIONS.escapes,
        formats: bool = DEFAULT_JSON_OPTIONS.formats,
        unknown_formats: UnknownFormats = DEFAULT_JSON_OPTIONS.unknown_formats,
        additional_properties: bool = DEFAULT_JSON_OPTIONS.additional_properties,
    ) -> Grammar:
        """JSON that validates against `schema`.

        Args:
            schema: a mapping, a boolean, JSON text of either, or a class with Pydantic's ``model_json_schema()``.
            whitespace: where space may stand; this and the other options are those of `JsonOptions`.
            key_order: "schema", members in the order of `properties`, then others; or "any".
            escapes: "all", or "short", which spells each character in one way.
            formats: whether known formats are enforced.
            unknown_formats: "annotate", they say nothing; or "refuse".
            additional_properties: whether an object schema with `properties` and without `additionalProperties` allows
                keys that it does not name.

        Raises:
            GrammarError: `schema` is none of these, or is not JSON; or an option has a value that it cannot have.
        """
        options = JsonOptions(whitespace, key_order, escapes, formats, unknown_formats, additional_properties)
        return cls("json_schema", _compact(_schema_value(schema)), options_text(options))

    @classmethod
    def json_object(
        cls,
        *,
        whitespace: Whitespace = DEFAULT_JSON_OPTIONS.whitespace,
        escapes: Escapes = DEFAULT_JSON_OPTIONS.escapes,
    ) -> Grammar:
        """Any JSON object, without a key that comes twice; the options are those of `json_schema`."""
        return cls.json_schema({"type": "object"}, whitespace=whitespace, escapes=escapes)

    @classmethod
    def choices(cls, choices: Sequence[str]) -> Grammar:
        """Exactly one of `choices`, which must be a non-empty sequence of non-empty, distinct strings."""
        if isinstance(choices, str) or not isinstance(choices, Sequence):
            raise GrammarError(f"choices must be a list of strings, not {type(choices).__name__}: {choices!r}")
        if not choices or not all(isinstance(choice, str) and choice for choice in choices):
            raise GrammarError(f"choices must be a non-empty list of non-empty strings, not {list(choices)!r}")
        if len(set(choices)) != len(choices):
            raise GrammarError(f"choices must be distinct: {list(choices)!r}")
        return cls("choices", _compact(list(choices)))

    @classmethod
    def ebnf(cls, source: str, *, root: str = "root") -> Grammar:
        r"""Text that the rule called `root` of an EBNF grammar matches in full.

        The dialect is that of llama.cpp (GBNF) and XGrammar, described in ebnf_parser.py. Rules may be recursive in any
        way, left recursion included.

        >>> Grammar.ebnf('''root ::= "yes" | "no" ("," [a-z ]{1,20})?''').kind
        'ebnf'
        """
        for name, value in (("source", source), ("root", root)):
            if not isinstance(value, str):
                raise GrammarError(f"ebnf {name} must be a string, not {type(value).__name__}: {value!r}")
        return cls("ebnf", _compact({"root": root, "ebnf": source}))

    @classmethod
    def lark(cls, source: str, *, start: str = "start") -> Grammar:
        r"""Text that the rule called `start` of a grammar in Lark's notation matches in full.

        What of the notation is read is described in lark_parser.py. Rules may be recursive in any way.

        >>> Grammar.lark('''start: "yes"i | "no" (", " /[a-z ]{1,20}/)?''').kind
        'lark'
        """
        for name, value in (("source", source), ("start", start)):
            if not isinstance(value, str):
                raise GrammarError(f"lark {name} must be a string, not {type(value).__name__}: {value!r}")
        return cls("lark", _compact({"start": start, "lark": source}))

    @classmethod
    def structural_tag(cls, spec: Any) -> Grammar:
        """Text with structured parts between tags, as XGrammar and SGLang describe it.

        Args:
            spec: a mapping, JSON text of one, or an object with Pydantic's ``model_dump()``: either
                ``{"type": "structural_tag", "format": {...}}`` or the older form with ``structures`` and ``triggers``.
                structural_tag.py lists the formats.

        Raises:
            GrammarError: `spec` is none of these, or is not JSON.
        """
        return cls("structural_tag", _compact(_tag_value(spec)))

    @classmethod
    def reasoning(
        cls,
        inner: Grammar,
        *,
        begin: str = "<think>",
        end: str = "</think>",
        begun: bool = False,
        required: bool = False,
    ) -> Grammar:
        """Free text between `begin` and `end`, then text of `inner`: for models that reason before they answer.

        The reasoning is whole characters without `end`. Up to two characters of white space may stand before `begin`,
        and between `end` and the answer.

        Args:
            inner: the grammar of the answer, of any kind but this one.
            begin: the tag that begins the reasoning.
            end: the tag that ends it.
            begun: whether the prompt ends in `begin` already, so that the text starts inside the reasoning.
            required: whether there must be reasoning; else the text may be the answer alone. Not used when `begun`.

        Raises:
            GrammarError: `inner` is no grammar or reasons itself, or a tag is empty or no string.
        """
        if not isinstance(inner, Grammar):
            raise GrammarError(f"the grammar after the reasoning must be a Grammar, not {inner!r}")
        if inner.kind == "reasoning":
            raise GrammarError("the grammar after the reasoning is a reasoning grammar itself; give the one inside it")
        tags = {"begin": check_text(begin, "the begin tag"), "end": check_text(end, "the end tag")}
        required = bool(required or begun)
        spec: dict[str, Any] = {**tags, "begun": bool(begun), "required": required, "inner": [inner.kind, inner.source]}
        if inner.options:
            spec["inner"].append(inner.options)
        return cls("reasoning", _compact(spec))


def check_text(text: object, what: str, *, pointer: str = "", empty: bool = False) -> str:
    """`text` itself, a string that UTF-8 can spell and, unless `empty`, not the empty one.

    Raises:
        GrammarError: it is something else; `what` names it.
    """
    if not isinstance(text, str):
        raise GrammarError(f"{what} must be a string, not {text!r}", pointer=pointer)
    if not text and not empty:
        raise GrammarError(f"{what} must not be empty", pointer=pointer)
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise GrammarError(f"{what} holds a surrogate without its other half: {text!r}", pointer=pointer)
    return text


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_json_value)
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply to be written as JSON, or holds itself") from None
    except (TypeError, ValueError) as error:
        raise GrammarError(f"the grammar is not JSON: {error}") from error


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        return value.model_json_schema()
    raise GrammarError(f"{value!r} is not JSON; allowed are mappings, lists, strings, numbers, booleans and None")


def _read_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise GrammarError(f"{what} is a string of JSON that is nested too deeply to be read") from None
    except ValueError as error:  # json's own, and Python's of a number with too many digits
        raise GrammarError(f"{what} is a string but not JSON: {error}") from error


def _tag_value(spec: Any) -> Mapping[str, Any]:
    if hasattr(spec, "model_dump") and not isinstance(spec, type):
        spec = spec.model_dump(mode="json", by_alias=True)
    if isinstance(spec, str):
        spec = _read_json(spec, "structural_tag")
    if isinstance(spec, Mapping):
        return spec
    raise GrammarError(f"structural_tag must be a mapping or JSON text of one, not {type(spec).__name__}: {spec!r}")


def _schema_value(schema: Any) -> Any:
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        return schema.model_json_schema()
    if isinstance(schema, str):
        schema = _read_json(schema, "json_schema")
    if isinstance(schema, bool | Mapping):
        return schema
    raise GrammarError(
        f"json_schema must be a mapping, a boolean, JSON text or a Pydantic model class, not {type(schema).__name__}"
    )
