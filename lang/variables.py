"""What a variable of a program stands for, and how its value is read once its nodes are done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from palmette.runtime.program import Completion, Generate, Generated, Selected

from .errors import ProgramError
from .expr import Reader
from .reasoning import ReasoningSplit
from .tree import NodeRecord, ProgramTree


class Variable:
    """What a name stands for; one of the classes below."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class NodeVariable(Variable):
    """The answer of a generation or select, or of one that reasons a `part` of it. Equal only to itself."""

    node_id: int
    reader: Reader | None = None
    part: ReasoningSplit | None = None


@dataclass(frozen=True, slots=True)
class TextVariable(Variable):
    """The text of several nodes of a branch, one after another."""

    node_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GatheredVariable(Variable):
    """The values that one variable has in the branches of a fork, in their order."""

    members: tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class FixedVariable(Variable):
    """A value that the program set itself."""

    value: Any


def nodes_of(variable: Variable) -> list[int]:
    """The nodes that must be done before the variable can be read."""
    ids: list[int] = []
    stack: list[Variable] = [variable]
    while stack:
        item = stack.pop()
        if isinstance(item, NodeVariable):
            ids.append(item.node_id)
        elif isinstance(item, TextVariable):
            ids.extend(item.node_ids)
        elif isinstance(item, GatheredVariable):
            stack.extend(item.members)
    return ids


def value_of(variable: Variable, tree: ProgramTree) -> Any:
    """The variable's value; its nodes are done. Recurses as deep as joins nest, which a program's text bounds.

    Raises:
        NodeFailedError: one of its nodes failed.
    """
    if isinstance(variable, FixedVariable):
        return variable.value
    if isinstance(variable, GatheredVariable):
        return [value_of(member, tree) for member in variable.members]
    if isinstance(variable, TextVariable):
        return text_of(variable.node_ids, tree)
    if not isinstance(variable, NodeVariable):
        raise TypeError(f"no value for {variable!r}")
    record = _answered(variable.node_id, tree)
    if variable not in record.values:
        record.values[variable] = _value(variable, record)
    return record.values[variable]


def meta_info_of(variable: Variable, tree: ProgramTree) -> Any:
    """What the backend says of the variable's answer: a dict; for several answers or branches a list of them."""
    if isinstance(variable, GatheredVariable):
        return [meta_info_of(member, tree) for member in variable.members]
    if not isinstance(variable, NodeVariable):
        return {}
    record = _answered(variable.node_id, tree)
    if isinstance(record.result, Selected):
        return _select_info(record.result)
    infos = [_completion_info(completion, record) for completion in _completions(record)]
    return infos if len(infos) > 1 else infos[0]


def text_of(node_ids: tuple[int, ...], tree: ProgramTree) -> str:
    """The text of nodes that are done, joined.

    Raises:
        NodeFailedError: one of them failed.
    """
    return "".join(_answered(node_id, tree).text for node_id in node_ids)


def _answered(node_id: int, tree: ProgramTree) -> NodeRecord:
    record = tree.records[node_id]
    if record.failure is not None:
        raise tree.error_of(node_id)
    return record


def _completions(record: NodeRecord) -> tuple[Completion, ...]:
    return record.result.completions if isinstance(record.result, Generated) else ()


def _read(text: str, variable: NodeVariable, record: NodeRecord) -> Any:
    if variable.part is not None:
        text = variable.part.of(text)
    if variable.reader is None:
        return text
    try:
        return variable.reader.read(text)
    except ValueError as error:
        cut = any(completion.finish_reason == "length" for completion in _completions(record))
        hint = ": the answer was cut off; raise max_tokens" if cut else ""
        raise ProgramError(
            f"{record.title} at {record.line} should be {variable.reader.name}, but is {text!r} ({error}){hint}",
            line=record.line,
            node=record.node,
        ) from error


def _value(variable: NodeVariable, record: NodeRecord) -> Any:
    if isinstance(record.node, Generate) and record.node.n > 1:
        return [_read(completion.text, variable, record) for completion in _completions(record)]
    return _read(record.text, variable, record)


def _completion_info(completion: Completion, record: NodeRecord) -> dict[str, Any]:
    elapsed_s = record.result.elapsed_s if record.result else 0.0
    return {**msgspec.structs.asdict(completion), "elapsed_s": elapsed_s}


def _select_info(result: Selected) -> dict[str, Any]:
    return {
        "choice": result.choice,
        "scores": result.scores,
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "elapsed_s": result.elapsed_s,
        "timings": result.timings,
    }
