"""The policies of JSON text that the JSON Schema specification leaves open, with their defaults."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Literal, get_args

from .errors import GrammarError

Whitespace = Literal["none", "single", "indented", "any"]
KeyOrder = Literal["schema", "any"]
Escapes = Literal["all", "short"]
UnknownFormats = Literal["annotate", "refuse"]


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """How the JSON that a schema allows may be written.

    Attributes:
        whitespace: "none"; "single", at most one space after a comma and after a colon; "indented", there and inside
            brackets at most one line break and 40 spaces or tabs; "any", all that JSON allows, which has no bound.
        key_order: "schema", the order of `properties` first, then other keys; or "any".
        escapes: "all" that JSON knows inside strings of values; or "short", ``\\u`` only where nothing else spells the
            character.
        formats: whether known formats are enforced.
        unknown_formats: "annotate", they say nothing; or "refuse".
        additional_properties: what an object schema without `additionalProperties` allows: True is the
            specification's, any other key; False is none but those its schema names.
    """

    whitespace: Whitespace = "single"
    key_order: KeyOrder = "schema"
    escapes: Escapes = "all"
    formats: bool = True
    unknown_formats: UnknownFormats = "annotate"
    additional_properties: bool = True


DEFAULT_JSON_OPTIONS = JsonOptions()

_ALLOWED: dict[str, tuple[object, ...]] = {
    "whitespace": get_args(Whitespace),
    "key_order": get_args(KeyOrder),
    "escapes": get_args(Escapes),
    "unknown_formats": get_args(UnknownFormats),
}


def options_text(options: JsonOptions) -> str:
    """What of `options` differs from the defaults, as compact JSON; empty where nothing does.

    Raises:
        GrammarError: an option has a value that it cannot have.
    """
    found = {field.name: getattr(options, field.name) for field in fields(options)}
    for name, value in found.items():
        allowed = _ALLOWED.get(name, (True, False))
        if not any(value is choice or (isinstance(value, str) and value == choice) for choice in allowed):
            shown = ", ".join(repr(choice) for choice in allowed)
            raise GrammarError(f"{name} must be one of {shown}, not {value!r}")
    changed = {name: value for name, value in found.items() if value != getattr(DEFAULT_JSON_OPTIONS, name)}
    return json.dumps(changed, separators=(",", ":")) if changed else ""


def options_of(text: str) -> JsonOptions:
    """The options that `options_text` wrote, or somebody else, over a wire.

    Raises:
        GrammarError: they are no options.
    """
    if not text:
        return DEFAULT_JSON_OPTIONS
    names = [field.name for field in fields(JsonOptions)]
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or not given.keys() <= set(names):
        raise GrammarError(
            f"the options of a JSON schema must be a JSON object of {', '.join(names)}, not {text[:200]!r}"
        )
    options = JsonOptions(**given)
    options_text(options)  # checks the values
    return options
