"""`CompiledProgram`: the request tree that a program builds, as `Function.compile` finds it out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from palmette.runtime.program import Node

from .compiled_print import rendered_shape
from .notebook import tree_html
from .source_line import SourceLine
from .tree_print import Shown
from .tree_view import TreeView

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What is known of a node before it runs.

    Attributes:
        characters, tokens: of its constant text; tokens are None where no tokenizer is at hand.
        calls: answers of the model that have it in their prompts.
    """

    characters: int
    tokens: int | None
    calls: int


@dataclass(frozen=True, slots=True)
class CompiledProgram(Shown):
    """The tree that a program builds, up to the first value that it reads. Print it to see it.

    Constant text is all that is not written by the model, the chat template's text too. What several calls have in
    their prompts is computed once: it is *shared*. Tokens are counted where the program was compiled for a backend that
    has its tokenizer at hand; else they are None, and characters are counted. What a reference will hold is unknown.

    Attributes:
        name: the program's name.
        nodes: what a run would send.
        shapes: what is known of each node, by its id.
        branches: the program's own branch and those of its forks.
        expected_calls: answers that the model will write or choose: each of the `n` of a `gen`, and every `select`.
        depth: the longest chain of calls of which each needs the one before.
        leading_text: constant text before the first call of the program's own branch: what runs with other arguments
            may have in common with this one.
        stopped_at: the line that needs a value first: what follows depends on it. None where the whole program is here.
        view: the tree as `ProgramState.tree` shows it. Tokens to be computed and reused are those of constant text.
    """

    name: str
    nodes: tuple[Node, ...]
    shapes: tuple[NodeShape, ...] = field(repr=False)
    branches: int
    expected_calls: int
    depth: int
    leading_text: str = field(repr=False)
    stopped_at: SourceLine | None
    view: TreeView = field(repr=False)

    @property
    def is_complete(self) -> bool:
        """Whether the program reads no value, so that all of it is known."""
        return self.stopped_at is None

    @property
    def constant_characters(self) -> int:
        """Of all constant text."""
        return sum(shape.characters for shape in self.shapes)

    @property
    def constant_tokens(self) -> int | None:
        """The same in tokens."""
        return _sum([shape.tokens for shape in self.shapes])

    @property
    def shared_characters(self) -> int:
        """Of the constant text that two calls or more have in their prompts."""
        return sum(shape.characters for shape in self.shapes if shape.calls > 1)

    @property
    def shared_tokens(self) -> int | None:
        """The same in tokens."""
        return _sum([shape.tokens for shape in self.shapes if shape.calls > 1])

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens are known."""
        return all(shape.tokens is not None for shape in self.shapes)

    @property
    def summary(self) -> str:
        """Its shape in a line."""
        unit = "token" if self.counts_tokens else "character"
        size = self.constant_tokens if self.counts_tokens else self.constant_characters
        shared = self.shared_tokens if self.counts_tokens else self.shared_characters
        return " · ".join(
            [
                _counted(len(self.nodes), "node"),
                _counted(self.branches, "branch"),
                f"{_counted(self.expected_calls, 'call')}, {self.depth} in a row",
                f"{_counted(size or 0, unit)} of constant text, {shared} shared",
            ]
        )

    @property
    def ending(self) -> str:
        """Where what is known ends: ``data-dependent from judge.py:14: ...``; "" where all is known."""
        if self.stopped_at is None:
            return ""
        line = self.stopped_at
        code = f": {line.code}" if line.code else ""
        return f"data-dependent from {Path(line.file).name}:{line.line}{code}"

    def _repr_html_(self) -> str:
        """The tree for notebooks."""
        return tree_html(self.view, summary=" · ".join(filter(None, [self.summary, self.ending])))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The tree for `rich.print`, as wide as the terminal."""
        yield from rendered_shape(self)


def _counted(count: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
