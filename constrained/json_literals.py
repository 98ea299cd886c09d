"""Rules of the JSON values that `enum` and `const` list, with the members of objects in any order."""

from __future__ import annotations

from typing import Any

from .json_object_graph import ObjectGraph, Place
from .json_text import Spacing, literal, string_literal
from .rules import EMPTY, Graph, Literal, Node, Sequence


def any_order_literal(value: Any, space: Spacing) -> Node:
    """The JSON `value`, members of its objects in any order. Iterative, since values may nest deeply."""
    order = [value]
    for inner in order:  # grows while it is walked: parents before children
        if isinstance(inner, list | dict):
            order.extend(inner.values() if isinstance(inner, dict) else inner)
    done: dict[int, Node] = {}
    for inner in reversed(order):
        if isinstance(inner, dict) and inner:
            done[id(inner)] = _object({key: done[id(member)] for key, member in inner.items()}, space)
        elif isinstance(inner, list) and inner:
            done[id(inner)] = _array([done[id(element)] for element in inner], space)
        else:
            done[id(inner)] = literal(inner, space)
    return done[id(value)]


def _object(members: dict[str, Node], space: Spacing) -> Node:
    written = [space.member(string_literal(key), member) for key, member in members.items()]
    inside: Node = written[0]
    if len(written) > 1:
        places = tuple(Place(((index, 0),), True) for index in range(1, len(written) + 1))
        spec = ObjectGraph(places, (), 0, 0, None, False)
        inside = Graph(spec, (space.comma, *written), spec.start())
    return space.bracketed(Literal(b"{"), inside, b"}")


def _array(elements: list[Node], space: Spacing) -> Node:
    parts: list[Node] = []
    for element in elements:
        parts.extend((space.comma, element) if parts else (element,))
    return space.bracketed(Literal(b"["), Sequence(tuple(part for part in parts if part != EMPTY)), b"]")
