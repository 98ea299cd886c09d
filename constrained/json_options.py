"""The policies of JSON text that the JSON Schema specification leaves open, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
