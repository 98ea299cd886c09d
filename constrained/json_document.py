"""A JSON Schema of any draft, read as one of 2020-12: each subschema in one canonical form, by its JSON pointer.

Nothing is done before it is asked for. Source: JSON Schema drafts 3 to 2020-12. Where this differs from them:

- Without a `$schema`, or with an unknown one, old forms are read where they can mean only one thing: `items` as a list,
  boolean `exclusiveMinimum` and `exclusiveMaximum`, `dependencies`, boolean `required`. With a `$schema` they are, too,
  but for boolean `required`.
- `$recursiveRef` means in 2020-12 what it does in 2019-09.
- "integer" means numbers without a fraction, 1.0 included, in drafts 3 and 4 too.
- A reference that leads nowhere in a resource inside the document is looked for in the whole document.
- A schema that calls itself by an `id` that is no keyword of its draft can be referred to by it.
"""

from __future__ import annotations

from .json_canonical import Canonical
from .json_forms import Pointer, Schema
from .json_options import DEFAULT_JSON_OPTIONS, JsonOptions
from .json_references import Place, References
from .limits import CompileLimits

__all__ = ["Document", "Pointer", "Schema"]


class Document:
    """One JSON Schema document, and the canonical form of the schemas in it.

    Attributes:
        start: pointer of the whole.
    """

    def __init__(self, root: object, limits: CompileLimits, options: JsonOptions = DEFAULT_JSON_OPTIONS) -> None:
        """`root` is the document as parsed, its numbers being int or Decimal; `options` say which formats count.

        Raises:
            GrammarError: it is neither an object nor a boolean.
        """
        self.start: Pointer = ""
        self._limits = limits
        self._options = options
        self._references = References(root)
        start = self._references.root
        self._places: dict[Pointer, Place] = {start.key: start}
        self._schemas: dict[Pointer, bool | Schema] = {}

    def schema(self, pointer: Pointer) -> bool | Schema:
        """The canonical form of the schema at `pointer`, which is `start` or was found in another schema.

        Raises:
            GrammarError: a keyword has a value that it must not have, or a reference leads nowhere.
            UnsupportedGrammarError: a reference leads into another document, or a format is refused.
        """
        known = self._schemas.get(pointer)
        if known is None:
            place = self._places[pointer]
            if isinstance(place.value, bool):
                known = place.value
            else:
                canonical = Canonical(place, self._references, self._options)
                known = canonical.schema
                self._places.update(canonical.places)
                self._schemas.update(canonical.made)
            self._schemas[pointer] = known
            self._limits.check("rules", len(self._schemas), "schemas in the schema")
        return known

    @staticmethod
    def shown(pointer: Pointer) -> str:
        """The JSON pointer, for a person, of the schema that `pointer` is in."""
        head, mark, _ = pointer.partition("~scope")
        return head if mark else pointer
