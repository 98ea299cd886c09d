"""Compiles a program: follows its function and works out the shape of the tree that it builds."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from palmette.runtime.program import Fork, Generate, Join, ModelInfo, Node, Reference, Select, Text

from .backend import Backend
from .compiled_print import planned
from .compiled_program import CompiledProgram, NodeShape
from .dry_execution import DryExecution
from .tree import ROOT_BRANCH, NodeRecord
from .tree_view import TreeNode, TreeView

_NO_MODEL = ModelInfo(name="", context_length=0, vocab_size=0)


@runtime_checkable
class KnowsTokens(Protocol):
    """A backend that has the model's tokenizer at hand: it counts without asking anybody."""

    def token_owners(self, texts: Sequence[Text], *, start: bool) -> Sequence[int]:
        """For each token of constant text that stands together, the id of the node in which it begins.

        Args:
            start: a prompt begins with it.
        """


def compile_program(
    program: Callable[..., Any],
    call: inspect.BoundArguments,
    *,
    name: str,
    defaults: Mapping[str, Any],
    backend: Backend | None,
) -> CompiledProgram:
    """The tree that the call of a program's function builds. `backend` tells of its model and is sent nothing.

    Raises:
        Exception: whatever the function raised before it read a value.
    """
    dry = DryExecution(_NO_MODEL if backend is None else backend.model_info, name=name, defaults=defaults)
    dry.follow(program, call)
    nodes = dry.nodes
    shapes = _shapes(nodes, backend if isinstance(backend, KnowsTokens) else None)
    return CompiledProgram(
        name=name,
        nodes=nodes,
        shapes=shapes,
        branches=1 + sum(node.branches for node in nodes if isinstance(node, Fork)),
        expected_calls=sum(map(_answers, nodes)),
        depth=_depth(nodes),
        leading_text=leading_text(dry.tree.records),
        stopped_at=dry.stopped_at,
        view=_planned_view(dry.view(), nodes, shapes),
    )


def leading_text(records: Sequence[NodeRecord]) -> str:
    """Constant text before the first call or reference of a program's own branch: of what it has appended so far."""
    trunk = [record for record in records if record.branch == ROOT_BRANCH]
    pieces = []
    for record in trunk:
        if isinstance(record.node, Generate | Select | Reference):
            break
        pieces.append(record.text)
    return "".join(pieces)


def _answers(node: Node) -> int:
    """Answers that the model will write or choose at a node."""
    return node.n if isinstance(node, Generate) else int(isinstance(node, Select))


def _depth(nodes: Sequence[Node]) -> int:
    """Calls on the longest chain of which each needs the one before, as its prompt or by a reference in it."""
    depths: list[int] = []
    for node in nodes:
        before = [node.parent, node.source if isinstance(node, Reference) else None]
        longest = max((depths[other] for other in before if other is not None), default=0)
        depths.append(longest + isinstance(node, Generate | Select))
    return max(depths, default=0)


def _shapes(nodes: Sequence[Node], tokenizer: KnowsTokens | None) -> tuple[NodeShape, ...]:
    tokens = None if tokenizer is None else _tokens(nodes, tokenizer)
    calls = _calls_below(nodes)
    return tuple(
        NodeShape(
            characters=len(node.text) if isinstance(node, Text) else 0,
            tokens=None if tokens is None else tokens[node.id],
            calls=calls[node.id],
        )
        for node in nodes
    )


def _calls_below(nodes: Sequence[Node]) -> list[int]:
    """By node, the answers that are asked for below it. Parents come before children."""
    below = [0] * len(nodes)
    for node in reversed(nodes):
        if node.parent is not None:
            below[node.parent] += below[node.id] + _answers(node)
    return below


def _tokens(nodes: Sequence[Node], tokenizer: KnowsTokens) -> Counter[int]:
    """Tokens of every node's constant text, all text between two calls encoded as one as the runtime does it.

    Where branches go on from a text in such a way that their beginnings are one token with its end, the first branch
    has it.
    """
    tokens: Counter[int] = Counter()
    counted: set[int] = set()
    for end in _ends_of_text(nodes):
        texts, start = _text_up_to(end, nodes)
        owners = Counter(tokenizer.token_owners(texts, start=start))
        for text in texts:
            if text.id not in counted:
                counted.add(text.id)
                tokens[text.id] = owners[text.id]
    return tokens


def _ends_of_text(nodes: Sequence[Node]) -> list[int]:
    """Ids of the constant texts after which no more comes before the next call: one for each branch there."""
    goes_on = [False] * len(nodes)  # text stands below, and no call in between
    ends = []
    for node in reversed(nodes):
        if isinstance(node, Text) and not goes_on[node.id]:
            ends.append(node.id)
        if node.parent is not None and (isinstance(node, Text) or (isinstance(node, Fork | Join) and goes_on[node.id])):
            goes_on[node.parent] = True
    return ends[::-1]


def _text_up_to(end: int, nodes: Sequence[Node]) -> tuple[list[Text], bool]:
    """Constant text that stands together and ends with a node, and whether a prompt begins with it."""
    texts: list[Text] = []
    node_id: int | None = end
    while node_id is not None:
        node = nodes[node_id]
        if isinstance(node, Text):
            texts.append(node)
        elif not isinstance(node, Fork | Join):
            break
        node_id = node.parent
    return texts[::-1], node_id is None


def _planned_view(view: TreeView, nodes: Sequence[Node], shapes: Sequence[NodeShape]) -> TreeView:
    """The view with what is asked of each call in the place of its answer."""
    return TreeView(view.name, tuple(_planned(node, nodes[node.id], shapes[node.id]) for node in view.nodes))


def _planned(view: TreeNode, node: Node, shape: NodeShape) -> TreeNode:
    text = f"({planned(node)})" if isinstance(node, Generate | Select) else view.text
    tokens = shape.tokens or 0
    reused = tokens * max(0, shape.calls - 1)
    return replace(view, text=text, status="planned", computed=tokens if shape.calls else 0, reused=reused)
