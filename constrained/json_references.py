"""Where a reference inside a schema leads: URIs, anchors, JSON pointers and the dynamic scope.

Source: JSON Schema 2020-12, core, 8.2; 2019-09, core, 8.2.4.2; RFC 3986; RFC 6901.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import unquote, urldefrag

from .errors import GrammarError, UnsupportedGrammarError
from .json_drafts import Draft, draft_named
from .json_resources import RECURSIVE, Index, draft_of, index_of, join, schemas_in
from .json_values import pointer_to


@dataclass(frozen=True, slots=True)
class Place:
    """A schema as it stands in the document.

    Attributes:
        pointer: where it is.
        value: what it is there.
        draft: whose keywords it has.
        resource: pointer of the resource that its references are relative to.
        scope: which dynamic anchors hold for it: a number that `References` knows.
    """

    pointer: str
    value: dict[str, object] | bool
    draft: Draft
    resource: str
    scope: int

    @property
    def key(self) -> str:
        """The pointer by which `Document.schema` knows this place."""
        return f"{self.pointer}~scope{self.scope}" if self.scope else self.pointer


class References:
    """The places of one document, and where its references lead.

    Attributes:
        root: the document itself.
    """

    def __init__(self, document: object) -> None:
        """Raises GrammarError where `document` is neither an object nor a boolean."""
        draft = draft_of(document, Draft.UNKNOWN) if isinstance(document, dict) else Draft.UNKNOWN
        self.root = Place("", checked_schema(document, ""), draft, "", 0)
        self._index: Index | None = None
        self._found: dict[tuple[str, str], Place] = {}
        self._scopes: list[dict[str, str]] = []
        self._mentions: dict[str, bool] = {}

    @property
    def index(self) -> Index:
        """The resources and anchors of the document. Made once, when something first depends on them."""
        if self._index is None:
            self._index = index_of(self.root.value, self.root.draft)
            self._scopes = [self._index.dynamic.get("", {})]
        return self._index

    def mentions(self, keyword: str) -> bool:
        """Whether any schema of the document has `keyword`."""
        if keyword not in self._mentions:
            self._mentions[keyword] = any(keyword in schema for schema in schemas_in(self.root.value))
        return self._mentions[keyword]

    def inside(self, outer: Place, value: object, pointer: str) -> Place:
        """The place of the schema `value` at `pointer`, directly inside the schema `outer`."""
        schema = checked_schema(value, pointer)
        draft, resource, scope = outer.draft, outer.resource, outer.scope
        if isinstance(schema, dict):
            if "$schema" in schema:
                draft = draft_of(schema, draft)
            if draft.id_keyword in schema and pointer in self.index.uris:
                resource = pointer
                scope = self._entered(scope, resource)
        return Place(pointer, schema, draft, resource, scope)

    def target(self, reference: str, place: Place, where: str) -> Place:
        """The schema that the `$ref` to `reference` in `place` leads to; `where` is the pointer of the keyword.

        Raises:
            GrammarError: it leads nowhere, or to what is no schema.
            UnsupportedGrammarError: it leads into another document.
        """
        if reference == "#" or reference.startswith("#/"):
            found = self._local(reference[1:], place, where)
        else:
            found = self._named(reference, place, where)
        scope = self._entered(place.scope, found.resource)
        return found if scope == found.scope else replace(found, scope=scope)

    def dynamic_target(self, reference: str, place: Place, where: str) -> Place:
        """As `target`, of a `$dynamicRef`: the outermost schema of that name on the way here, which is known."""
        first = self.target(reference, place, where)
        name = unquote(urldefrag(reference).fragment)
        return self._outermost(name, first, place)

    def recursive_target(self, place: Place, where: str) -> Place:
        """As `target`, of a `$recursiveRef`, which is always to ``#``."""
        return self._outermost(RECURSIVE, self.target("#", place, where), place)

    def _outermost(self, name: str, first: Place, place: Place) -> Place:
        if self.index.dynamic.get(first.resource, {}).get(name) != first.pointer:
            return first
        found = self._at(self._scopes[place.scope].get(name, first.pointer), "", first.pointer)
        return replace(found, scope=self._entered(place.scope, found.resource))

    def _entered(self, scope: int, resource: str) -> int:
        """The number of the dynamic anchors that hold in `resource`, entered where those of `scope` do."""
        if self._index is None:
            return scope  # nothing has a name yet that matters, so there is only one resource
        outer = self._scopes[scope]
        added = {name: at for name, at in self._index.dynamic.get(resource, {}).items() if name not in outer}
        if not added:
            return scope
        inner = outer | added
        if inner not in self._scopes:
            self._scopes.append(inner)
        return self._scopes.index(inner)

    def _local(self, fragment: str, place: Place, where: str) -> Place:
        """The schema at a JSON pointer in the resource of `place`, else in the whole document.

        The latter is not the specification's: schemas whose inner `id` was meant as a title are refused by it.
        """
        try:
            return self._at(place.resource, fragment, where)
        except GrammarError as error:
            if place.resource:
                with suppress(GrammarError):
                    return self._at("", fragment, where)
            raise error

    def _named(self, reference: str, place: Place, where: str) -> Place:
        """What a reference by URI or by anchor leads to."""
        index = self.index
        uri, fragment = urldefrag(join(index.uris[place.resource], reference))
        resource = index.resources.get(uri)
        if resource is None:
            named = index.names.get(join(index.uris[place.resource], reference).removesuffix("#"), index.names.get(uri))
            if named is None:
                raise refuse_foreign(reference, uri, where)
            return self._at(named, fragment if fragment.startswith("/") else "", where)
        if not fragment or fragment.startswith("/"):
            return self._at(resource, fragment, where)
        name = unquote(fragment)
        found = index.anchors.get((resource, name), index.names.get(join(uri, f"#{name}")))
        if found is None:
            raise GrammarError(f"{reference!r} refers to {name!r}, a name that no schema has here", pointer=where)
        return self._at(found, "", where)

    def _at(self, resource: str, fragment: str, where: str) -> Place:
        """The place of the schema at the JSON pointer `fragment` in `resource`; its scope is still to be set."""
        found = self._found.get((resource, fragment))
        if found is None:
            steps = [*steps_of(resource, where, is_fragment=False), *steps_of(fragment, where)]
            found = self._found[resource, fragment] = self._walk(steps, resource + fragment, where)
        return found

    def _walk(self, steps: list[str], written: str, where: str) -> Place:
        here: object = self.root.value
        draft, path, paths, named = self.root.draft, "", [""], False
        for step in steps:
            here = step_into(here, step, f"#{written}", where)
            path = pointer_to(path, step)
            if isinstance(here, dict):
                draft = draft_of(here, draft)
                named = named or draft.id_keyword in here
            paths.append(path)
        uris = self.index.uris if named or self._index is not None else {"": ""}
        if not isinstance(here, dict | bool):
            raise GrammarError(f"'#{written}' refers to what is no schema: {here!r:.80}", pointer=where)
        return Place(path, here, draft, next(path for path in reversed(paths) if path in uris), 0)


def step_into(here: object, step: str, written: str, where: str) -> object:
    """The value of `here` that one `step` of a JSON pointer leads to; `written` is the pointer, for the error."""
    if isinstance(here, dict) and step in here:
        return here[step]
    if (
        isinstance(here, list)
        and step.isascii()
        and step.isdigit()
        and str(int(step)) == step
        and int(step) < len(here)
    ):
        return here[int(step)]
    raise GrammarError(f"{written!r} refers to nothing: there is no {step!r}", pointer=where)


def checked_schema(value: object, pointer: str) -> dict[str, object] | bool:
    """`value`, which must be a schema."""
    if isinstance(value, dict | bool):
        return value
    raise GrammarError(f"a schema must be an object or a boolean, not {value!r:.80}", pointer=pointer)


def steps_of(fragment: str, pointer: str, *, is_fragment: bool = True) -> list[str]:
    """The steps of a JSON pointer, by default one that is the fragment of a URI.

    Raises:
        GrammarError: it is no JSON pointer; `pointer` says where it was met.
    """
    text = unquote(fragment) if is_fragment else fragment
    steps = text.split("/")[1:]
    if "~" in text:
        if any(step[index + 1 : index + 2] not in ("0", "1") for step in steps for index in _tildes(step)):
            raise GrammarError(f"{fragment!r} is no JSON pointer: '~' must be followed by 0 or 1", pointer=pointer)
        steps = [step.replace("~1", "/").replace("~0", "~") for step in steps]
    return steps


def _tildes(step: str) -> Iterator[int]:
    return (index for index, char in enumerate(step) if char == "~")


def refuse_foreign(reference: str, uri: str, pointer: str) -> UnsupportedGrammarError:
    """The error for a reference to another document."""
    draft = draft_named(uri)
    what = "the meta-schema of a draft" if draft < Draft.UNKNOWN else "another document"
    return UnsupportedGrammarError(
        f"{reference!r} refers to {what} ({urldefrag(uri).url}), and nothing is ever fetched; copy it into '$defs'",
        pointer=pointer,
    )
