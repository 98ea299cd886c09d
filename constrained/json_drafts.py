"""The drafts of JSON Schema: how each is named, which keywords it has, and where schemas stand inside schemas.

Source: JSON Schema drafts 3, 4, 6, 7, 2019-09 and 2020-12, and the meta-schema of each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum


class Draft(IntEnum):
    """A draft by its number or year. `UNKNOWN` has the keywords of 2020-12 and, where they are clear, older forms."""

    D3 = 3
    D4 = 4
    D6 = 6
    D7 = 7
    D2019 = 2019
    D2020 = 2020
    UNKNOWN = 9999

    @property
    def hides_siblings(self) -> bool:
        """Whether keywords beside a `$ref` are ignored. Source: draft 7, core, 8.3; 2019-09, core, 8.2.4.1."""
        return self <= Draft.D7

    @property
    def id_keyword(self) -> str:
        """The keyword that names a schema and changes what the references in it are relative to."""
        return "id" if self <= Draft.D4 else "$id"


_DRAFT_NAME = re.compile(r"json-schema\.org/draft[-/](?:0?(?P<number>[3467])|(?P<year>2019-09|2020-12))\b")
_KNOWN_DIALECTS = (
    ("iglucentral.com/schemas/com.snowplowanalytics.self-desc/schema/jsonschema", Draft.D4),
    ("spec.openapis.org/oas/3.1", Draft.D2020),
)


def draft_named(uri: str) -> Draft:
    """The draft that the value of a `$schema` names; `Draft.UNKNOWN` for all others."""
    found = _DRAFT_NAME.search(uri)
    if found is None:
        return next((draft for part, draft in _KNOWN_DIALECTS if part in uri), Draft.UNKNOWN)
    return Draft(int(found["number"] or found["year"][:4]))


# First and last draft of the keywords that not all drafts have; `Draft.UNKNOWN` has all those that 2020-12 has.
_DRAFTS_OF: Mapping[str, tuple[Draft, Draft]] = {
    "allOf": (Draft.D4, Draft.UNKNOWN),
    "anyOf": (Draft.D4, Draft.UNKNOWN),
    "oneOf": (Draft.D4, Draft.UNKNOWN),
    "not": (Draft.D4, Draft.UNKNOWN),
    "multipleOf": (Draft.D4, Draft.UNKNOWN),
    "minProperties": (Draft.D4, Draft.UNKNOWN),
    "maxProperties": (Draft.D4, Draft.UNKNOWN),
    "const": (Draft.D6, Draft.UNKNOWN),
    "contains": (Draft.D6, Draft.UNKNOWN),
    "propertyNames": (Draft.D6, Draft.UNKNOWN),
    "if": (Draft.D7, Draft.UNKNOWN),
    "then": (Draft.D7, Draft.UNKNOWN),
    "else": (Draft.D7, Draft.UNKNOWN),
    "minContains": (Draft.D2019, Draft.UNKNOWN),
    "maxContains": (Draft.D2019, Draft.UNKNOWN),
    "dependentRequired": (Draft.D2019, Draft.UNKNOWN),
    "dependentSchemas": (Draft.D2019, Draft.UNKNOWN),
    "unevaluatedItems": (Draft.D2019, Draft.UNKNOWN),
    "unevaluatedProperties": (Draft.D2019, Draft.UNKNOWN),
    "$anchor": (Draft.D2019, Draft.UNKNOWN),
    "$recursiveAnchor": (Draft.D2019, Draft.UNKNOWN),
    "$recursiveRef": (Draft.D2019, Draft.UNKNOWN),
    "prefixItems": (Draft.D2020, Draft.UNKNOWN),
    "$dynamicAnchor": (Draft.D2020, Draft.UNKNOWN),
    "$dynamicRef": (Draft.D2020, Draft.UNKNOWN),
    "disallow": (Draft.D3, Draft.D3),
    "divisibleBy": (Draft.D3, Draft.D3),
    "extends": (Draft.D3, Draft.D3),
}


def has_keyword(draft: Draft, keyword: str) -> bool:
    """Whether `keyword` means something in `draft`, given that it does in some draft."""
    first, last = _DRAFTS_OF.get(keyword, (Draft.D3, Draft.UNKNOWN))
    return first <= draft <= last


# Keywords whose value is a schema or a list of them, and those whose value is an object of schemas, in any draft.
INNER_SCHEMAS = frozenset(
    [
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "contains",
        "disallow",
        "else",
        "extends",
        "if",
        "items",
        "not",
        "oneOf",
        "prefixItems",
        "propertyNames",
        "then",
        "type",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
NAMED_SCHEMAS = frozenset(
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"]
)
