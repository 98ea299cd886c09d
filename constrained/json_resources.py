"""The resources of a JSON Schema document, and the names that schemas in it have.

A document is split into resources, each a schema with a URI of its own; references are relative to the resource that
they stand in. Source: JSON Schema 2020-12, core, sections 8 and 9.2; drafts 3 to 7, core, on `id` and `$id`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urldefrag, urljoin

from .json_drafts import INNER_SCHEMAS, NAMED_SCHEMAS, Draft, draft_named, has_keyword
from .json_values import pointer_to

RECURSIVE = ""
"""The name under which `$recursiveAnchor` stands among the dynamic anchors."""


def join(base: str, reference: str) -> str:
    """`reference` made absolute. Unlike `urljoin`, a fragment may follow a URI of any scheme, such as ``urn:``."""
    return urldefrag(base).url + reference if reference.startswith("#") else urljoin(base, reference)


def draft_of(schema: dict[str, object], draft: Draft) -> Draft:
    """The draft of `schema` in a schema of `draft`: its own `$schema` decides, where it names a draft."""
    named = schema.get("$schema")
    found = draft_named(named) if isinstance(named, str) else Draft.UNKNOWN
    return draft if found is Draft.UNKNOWN else found


def own_uri(schema: dict[str, object], draft: Draft, base: str) -> str | None:
    """What `schema` calls itself, made absolute, fragment included; None if it has no name."""
    name = schema.get(draft.id_keyword)
    if not isinstance(name, str) or ("$ref" in schema and draft.hides_siblings):
        return None
    return join(base, name)


@dataclass(slots=True)
class Index:
    """The resources and anchors of one document, each with its JSON pointer.

    Attributes:
        resources: pointer of each resource by its URI.
        uris: URI of each resource by its pointer.
        anchors: pointer by resource and name.
        dynamic: by resource, pointer by name of the anchors that a dynamic reference looks for.
        names: pointers of schemas that call themselves by an `id` that is no keyword of their draft.
    """

    resources: dict[str, str] = field(default_factory=dict)
    uris: dict[str, str] = field(default_factory=dict)
    anchors: dict[tuple[str, str], str] = field(default_factory=dict)
    dynamic: dict[str, dict[str, str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, schema: dict[str, object], pointer: str, resource: str, draft: Draft) -> str:
        """Note what `schema`, which stands in `resource`, calls itself. Returns the resource that it belongs to."""
        base = self.uris[resource]
        uri = own_uri(schema, draft, base)
        if uri is not None:
            absolute, name = urldefrag(uri)
            if absolute != base or not pointer:
                self.resources.setdefault(absolute, pointer)
                self.uris[pointer] = absolute
                resource = pointer
            if name and not name.startswith("/"):
                self.anchors[resource, name] = pointer
        else:
            self._add_foreign_name(schema, pointer, base)
        self._add_anchors(schema, pointer, resource, draft)
        return resource

    def _add_foreign_name(self, schema: dict[str, object], pointer: str, base: str) -> None:
        for keyword in ("$id", "id"):
            name = schema.get(keyword)
            if isinstance(name, str):
                self.names.setdefault(join(base, name).removesuffix("#"), pointer)

    def _add_anchors(self, schema: dict[str, object], pointer: str, resource: str, draft: Draft) -> None:
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = schema.get(keyword)
            if isinstance(name, str) and has_keyword(draft, keyword):
                self.anchors[resource, name] = pointer
                if keyword == "$dynamicAnchor":
                    self.dynamic.setdefault(resource, {})[name] = pointer
        if pointer == resource and schema.get("$recursiveAnchor") is True and has_keyword(draft, "$recursiveAnchor"):
            self.dynamic.setdefault(resource, {})[RECURSIVE] = pointer


def index_of(root: object, draft: Draft) -> Index:
    """All resources and anchors of the document `root`. Only schemas are looked at: what `enum` lists is data."""
    index = Index(uris={"": root_uri(root)})
    index.resources[index.uris[""]] = ""
    index.resources.setdefault("", "")
    todo: list[tuple[object, str, str, Draft]] = [(root, "", "", draft)]
    while todo:
        schema, pointer, resource, draft = todo.pop()
        if isinstance(schema, dict):
            draft = draft_of(schema, draft)
            resource = index.add(schema, pointer, resource, draft)
            todo.extend((inner, pointer + tail, resource, draft) for tail, inner in inner_schemas(schema))
    return index


def root_uri(root: object) -> str:
    """The URI of a document by its own word; ``""`` if it has none. Without a `$schema`, an `id` counts too."""
    if not isinstance(root, dict):
        return ""
    keyword = draft_of(root, Draft.UNKNOWN).id_keyword
    name = root.get(keyword, root.get("id", root.get("$id")))
    return urldefrag(name).url if isinstance(name, str) else ""


def inner_schemas(schema: dict[str, object]) -> Iterator[tuple[str, object]]:
    """What stands where `schema` may hold schemas, each with the rest of its pointer."""
    for keyword, value in schema.items():
        if isinstance(value, dict):
            if keyword in INNER_SCHEMAS:
                yield f"/{keyword}", value
            elif keyword in NAMED_SCHEMAS:
                for name, inner in value.items():
                    if isinstance(inner, dict):
                        yield pointer_to(f"/{keyword}", name), inner
        elif isinstance(value, list) and keyword in INNER_SCHEMAS:
            for place, inner in enumerate(value):
                if isinstance(inner, dict):
                    yield f"/{keyword}/{place}", inner


def schemas_in(root: object) -> Iterator[dict[str, object]]:
    """Every object that stands in `root` where a schema may be, `root` itself first."""
    todo = [root]
    while todo:
        schema = todo.pop()
        if isinstance(schema, dict):
            yield schema
            todo.extend(inner for _, inner in inner_schemas(schema))
