"""The canonical form of a JSON Schema: what `Document.schema` gives.

Source: JSON Schema 2020-12, core and validation.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, TypedDict

from .json_values import Json, TypeName

Pointer = str
"""Where a schema is: an argument of `Document.schema`. A JSON pointer, which a suffix that begins with ``~`` and no
escape may follow: for schemas that the document only implies."""

Schema = TypedDict(
    "Schema",
    {
        "type": tuple[TypeName, ...],
        "enum": list[Json],
        "minimum": Decimal,
        "maximum": Decimal,
        "exclusiveMinimum": Decimal,
        "exclusiveMaximum": Decimal,
        "multipleOf": Decimal,
        "minLength": int,
        "maxLength": int,
        "pattern": str,
        "format": str,
        "properties": dict[str, Pointer],
        "patternProperties": dict[str, Pointer],
        "additionalProperties": Pointer,
        "propertyNames": Pointer,
        "required": list[str],
        "minProperties": int,
        "maxProperties": int,
        "dependentRequired": dict[str, list[str]],
        "dependentSchemas": dict[str, Pointer],
        "unevaluatedProperties": Pointer,
        "prefixItems": list[Pointer],
        "items": Pointer,
        "contains": Pointer,
        "minContains": int,
        "maxContains": int,
        "minItems": int,
        "maxItems": int,
        "uniqueItems": bool,
        "unevaluatedItems": Pointer,
        "$ref": Pointer,
        "allOf": list[Pointer],
        "anyOf": list[Pointer],
        "oneOf": list[Pointer],
        "not": Pointer,
        "if": Pointer,
        "then": Pointer,
        "else": Pointer,
    },
    total=False,
)
"""The keywords of one schema that say something of which values are valid, with their meaning in draft 2020-12.

`enum` holds `const` too; `uniqueItems` is present only if it is true; empty objects and lists, and zeros that change
nothing, are absent.
"""

CountKey = Literal[
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
]
NumberKey = Literal["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]
TextKey = Literal["pattern", "format"]
SchemaKey = Literal[
    "additionalProperties",
    "propertyNames",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedProperties",
    "unevaluatedItems",
]
SchemaListKey = Literal["allOf", "anyOf", "oneOf"]
NamedSchemasKey = Literal["properties", "patternProperties", "dependentSchemas"]
