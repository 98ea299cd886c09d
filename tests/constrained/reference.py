"""Slow, independent references that the tests of constrained/ compare with."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
from numpy.typing import NDArray

from palmette.constrained import CompiledGrammar, Vocabulary
from palmette.constrained.rules import (
    EMPTY,
    NOTHING,
    ByteClass,
    Choice,
    Except,
    Flagged,
    Graph,
    Literal,
    Node,
    Repeat,
    RuleRef,
    Rules,
    Sequence,
    is_nullable_leaf,
    rules_that_hold,
)
from palmette.constrained.simplify import choice, sequence

BYTES = Vocabulary([bytes([byte]) for byte in range(256)], end_ids=[256], size=257)
"""A vocabulary of all single bytes, token i being byte i, and one end token."""


class Derivatives:
    """A recogniser by Brzozowski derivatives of simplified rules: no positions, no stacks, no states."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules.rules
        self._nullable = rules_that_hold(rules.rules, is_nullable_leaf)
        self.start: Node = RuleRef(rules.start)

    def accepts(self, node: Node) -> bool:
        """Whether the empty text matches `node`."""
        match node:
            case Literal(value):
                return not value
            case ByteClass():
                return False
            case Sequence(parts):
                return all(self.accepts(part) for part in parts)
            case Choice(options):
                return any(self.accepts(option) for option in options)
            case Repeat(body, low, _):
                return low == 0 or self.accepts(body)
            case RuleRef(name):
                return name in self._nullable
            case Flagged(body, _):
                return self.accepts(body)
            case Except(body, words):
                return self.accepts(body) and b"" not in words
            case Graph(spec, _, state):
                return spec.ends(state)

    def after(self, node: Node, byte: int) -> Node:
        """What may follow `byte` in the texts of `node`; NOTHING if it may not come."""
        match node:
            case Literal(value):
                return Literal(value[1:]) if value[:1] == bytes([byte]) else NOTHING
            case ByteClass(mask):
                return EMPTY if mask >> byte & 1 else NOTHING
            case Sequence(parts):
                return self._after_sequence(parts, byte)
            case Choice(options):
                return choice(dict.fromkeys(self.after(option, byte) for option in options))
            case Repeat(body, low, high):
                if high == 0:
                    return NOTHING
                rest = Repeat(body, max(low - 1, 0), None if high is None else high - 1)
                return sequence((self.after(body, byte), rest))
            case RuleRef(name):
                return self.after(self._rules[name], byte)
            case Flagged(body, _):
                return self.after(body, byte)
            case Except(body, words):
                left = frozenset(word[1:] for word in words if word[:1] == bytes([byte]))
                after = self.after(body, byte)
                return Except(after, left) if after != NOTHING and (left != {b""} or after != EMPTY) else NOTHING
            case Graph():
                return self._after_graph(node, byte)

    def _after_graph(self, graph: Graph, byte: int) -> Node:
        costs = [math.inf if body == NOTHING else 0.0 for body in graph.bodies]
        options = []
        for body, state in graph.spec.edges(graph.state):
            if graph.spec.cost(state, costs) < math.inf:
                rest = Graph(graph.spec, graph.bodies, state)
                options.append(sequence((self.after(graph.bodies[body], byte), rest)))
        return choice(dict.fromkeys(options))

    def _after_sequence(self, parts: tuple[Node, ...], byte: int) -> Node:
        options = []
        for index, part in enumerate(parts):
            options.append(sequence((self.after(part, byte), *parts[index + 1 :])))
            if not self.accepts(part):
                break
        return choice(dict.fromkeys(options))

    def allowed(self, node: Node, vocabulary: Vocabulary) -> set[int]:
        """Every token whose bytes, tried one by one, may come; end tokens where the text may end."""
        allowed = set(vocabulary.end_ids) if self.accepts(node) else set()
        for token_id, token in enumerate(vocabulary.token_bytes):
            if token and token_id not in vocabulary.end_ids and self.after_all(node, token) != NOTHING:
                allowed.add(token_id)
        return allowed

    def after_all(self, node: Node, text: bytes) -> Node:
        """`after`, byte by byte."""
        for byte in text:
            node = self.after(node, byte)
        return node


def token_set(mask: NDArray[np.uint32]) -> set[int]:
    """The token ids of a mask, read bit by bit as the interface says."""
    return {word * 32 + bit for word, value in enumerate(mask.tolist()) for bit in range(32) if value >> bit & 1}


def accepts(compiled: CompiledGrammar, text: str | bytes) -> bool:
    """Whether `compiled`, over the vocabulary `BYTES`, matches `text` in full."""
    state: int | None = compiled.start
    for byte in text.encode() if isinstance(text, str) else text:
        state = compiled.advance(state, byte) if state is not None else None
    return state is not None and compiled.is_accepting(state)


def walk(
    compiled: CompiledGrammar,
    choose: Callable[[list[int]], int],
    tokens: int,
    visit: Callable[[int], None] | None = None,
) -> tuple[int, bytes]:
    """Follow masks for up to `tokens` tokens, `choose` picking among the allowed; the last state, and the bytes."""
    state, text = compiled.start, b""
    for _ in range(tokens):
        allowed = sorted(token_set(compiled.mask(state)) - compiled.vocabulary.end_ids)
        if not allowed:
            break
        token_id = choose(allowed)
        following = compiled.advance(state, token_id)
        assert following is not None, f"token {token_id} is in the mask, but not allowed"
        text += compiled.vocabulary.token_bytes[token_id] or b""
        state = following
    return state, text


def validator_of(schema: Any) -> Any:
    """A python-jsonschema validator of `schema` for its own draft; `format` is an annotation."""
    return jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)


def is_valid(instance: Any, schema: Any) -> bool:
    """Whether python-jsonschema finds `instance` valid."""
    return bool(validator_of(schema).is_valid(instance))


def in_schema_order(instance: Any, schema: Any, root: Any) -> Any:
    """`instance` with members in the order in which the grammar of `schema` writes them."""
    return _ordered(instance, [schema], root)


def _ordered(instance: Any, schemas: list[Any], root: Any) -> Any:
    if not isinstance(instance, dict | list):
        return instance
    parts = _flat(instance, schemas, root)
    if isinstance(instance, list):
        return [_ordered(item, [_element(part, index) for part in parts], root) for index, item in enumerate(instance)]
    order = [key for part in parts for key in part.get("properties", {})]
    order += [key for part in parts for key in part.get("required", [])]
    order += [key for part in parts for value in _listed(part) if value == instance for key in value]
    return {
        key: _ordered(instance[key], [_member(part, key) for part in parts], root)
        for key in dict.fromkeys([*order, *instance])
        if key in instance
    }


def _element(schema: dict[str, Any], index: int) -> Any:
    prefix = schema.get("prefixItems", [])
    return prefix[index] if index < len(prefix) else schema.get("items", {})


def _member(schema: dict[str, Any], key: str) -> Any:
    return schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))


def _listed(schema: dict[str, Any]) -> list[Any]:
    return [value for value in [*schema.get("enum", []), schema.get("const")] if isinstance(value, dict)]


def _flat(instance: Any, schemas: list[Any], root: Any) -> list[dict[str, Any]]:
    """The schemas that hold for `instance`: past references and allOf, then one valid option of each union."""
    parts: list[dict[str, Any]] = []
    options: list[Any] = []
    todo = [schema for schema in reversed(schemas) if isinstance(schema, dict)]
    for _ in range(200):
        if not todo:
            break
        schema = todo.pop()
        if "$ref" in schema and _hides_siblings(root):
            schema = {"allOf": [_target(schema["$ref"], root)]}
        inside = ([_target(schema["$ref"], root)] if "$ref" in schema else []) + schema.get("allOf", [])
        parts.append(schema)
        todo.extend(part for part in reversed(inside) if isinstance(part, dict))
        options.extend(_first_valid(instance, schema[union], root) for union in ("anyOf", "oneOf") if union in schema)
    return parts + (_flat(instance, options, root) if options else [])


def _hides_siblings(root: Any) -> bool:
    """Whether `$schema` names a draft in which keywords beside a `$ref` are ignored."""
    draft = root.get("$schema", "") if isinstance(root, dict) else ""
    return any(f"/draft-0{number}/" in draft for number in (3, 4, 6, 7))


def _first_valid(instance: Any, options: list[Any], root: Any) -> Any:
    validator = validator_of(root)
    return next((o for o in options if isinstance(o, dict) and validator.evolve(schema=o).is_valid(instance)), {})


def _target(pointer: str, root: Any) -> Any:
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        root = root[int(step)] if isinstance(root, list) else root[step]
    return root


def compact(instance: Any) -> str:
    """JSON text without spaces, characters unescaped."""
    return json.dumps(instance, separators=(",", ":"), ensure_ascii=False)
