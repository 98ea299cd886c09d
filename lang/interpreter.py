"""Walks expressions and appends what they stand for to one branch of the request tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from palmette.runtime.program import Fork, Generate, Join, Node, Select, Text
from palmette.runtime.sampling_params import SamplingParams

from .errors import ProgramError
from .execution import Execution
from .expr import Constant, Expr, ExprList, GenExpr, Role, RoleBegin, RoleEnd, SelectExpr, parts
from .source_line import SourceLine
from .tree import ROOT_BRANCH
from .variables import GatheredVariable, NodeVariable, TextVariable, Variable, text_of

NodeMaker = Callable[[int, int | None], Node]
"""Builds a node from its id and its parent's."""


@dataclass(frozen=True, slots=True)
class Message:
    """A closed message: its role, and the nodes of its content."""

    role: Role
    node_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpenRole:
    """The message that is open: its role, the role before it, and where in the branch's path its content begins."""

    role: Role
    previous: Role | None
    start: int


class Interpreter:
    """One branch of a program: where it stands in the tree, and what was said and set on the way there.

    Everything here changes under the execution's lock.

    Attributes:
        path: ids of the branch's nodes from the root; it only grows.
        variables: what `s[name]` reads.
        messages: the closed messages, in order.
        joined: nothing may follow.
    """

    def __init__(self, execution: Execution, branch: int = ROOT_BRANCH) -> None:
        self.execution = execution
        self.branch = branch
        self.path: list[int] = []
        self.variables: dict[str, Variable] = {}
        self.messages: list[Message] = []
        self.joined = False
        self._open_role: OpenRole | None = None
        self._scopes: list[tuple[str, int]] = []
        self._own_variables: set[str] = set()
        self._gathered: set[str] = set()
        self._has_text = False

    # -- expressions ------------------------------------------------------------------------------------------------

    def append(self, expr: Expr, line: SourceLine) -> None:
        """Append an expression.

        Raises:
            ProgramError: a role is opened or closed where it cannot be, or the branch has ended.
            RequestError: sampling options contradict each other.
        """
        with self.execution.changed:
            for part in parts(expr):
                self._append_part(part, line)

    def _append_part(self, part: Expr, line: SourceLine) -> None:
        if isinstance(part, Constant):
            self._add_text(part.text, line)
        elif isinstance(part, GenExpr):
            self._add_generation(part, line)
        elif isinstance(part, SelectExpr):
            node = self._add(lambda i, parent: Select(i, parent, part.choices, part.method), line, part.name)
            self._set_answer(part.name, NodeVariable(node.id))
        elif isinstance(part, RoleBegin):
            self._begin_role(part.role, line)
        elif isinstance(part, RoleEnd):
            self._end_role(part.role, line)
        elif not isinstance(part, ExprList):
            raise TypeError(f"no interpretation for {part!r}")

    def _add_text(self, text: str, line: SourceLine, *, template: bool = False) -> None:
        if text:
            self._add(lambda i, parent: Text(i, parent, text, template), line)
            self._has_text = True

    def _add_generation(self, expr: GenExpr, line: SourceLine) -> None:
        params = SamplingParams(**{**self.execution.defaults, **expr.options})
        stream = self.execution.streaming
        node = self._add(lambda i, parent: Generate(i, parent, params, expr.grammar, expr.n, stream), line, expr.name)
        self._set_answer(expr.name, NodeVariable(node.id, expr.reading))

    def _set_answer(self, name: str | None, variable: Variable) -> None:
        self._has_text = True
        if name is not None:
            self.set_variable(name, variable)

    def set_variable(self, name: str, variable: Variable) -> None:
        """Set a variable of this branch; an older one of that name is replaced. The caller holds the lock."""
        self.variables[name] = variable
        self._own_variables.add(name)
        self._gathered.discard(name)

    def _add(self, make: NodeMaker, line: SourceLine, name: str | None = None) -> Node:
        if self.joined:
            raise ProgramError("this branch was joined; append to the state that was forked", line=line)
        parent = self.path[-1] if self.path else None
        node = self.execution.add(lambda node_id: make(node_id, parent), branch=self.branch, line=line, name=name)
        self.path.append(node.id)
        return node

    def check_invariants(self) -> None:
        """The path leads from the root down, one parent after another. The caller holds the lock."""
        records = self.execution.tree.records
        for parent, node_id in zip([None, *self.path], self.path, strict=False):
            assert records[node_id].node.parent == parent
        assert all(node_id in self.path for message in self.messages for node_id in message.node_ids)
        assert self._gathered <= self._own_variables <= self.variables.keys()

    # -- roles ------------------------------------------------------------------------------------------------------

    def _begin_role(self, role: Role, line: SourceLine) -> None:
        if self._open_role is not None:
            raise ProgramError(
                f"no {role} message can begin inside the open {self._open_role.role} message; close that one first",
                line=line,
            )
        previous = self.messages[-1].role if self.messages else None
        text = self.execution.template.begin(role, previous)
        if previous is None and self._has_text:
            text = text.removeprefix(self.execution.template.sequence_start)  # a sequence begins only once
        self._add_text(text, line, template=True)
        self._open_role = OpenRole(role, previous, len(self.path))

    def _end_role(self, role: Role, line: SourceLine) -> None:
        opened = self._open_role
        if opened is None or opened.role != role:
            state = "none is open" if opened is None else f"the open message is of {opened.role}"
            raise ProgramError(f"there is no {role} message to close: {state}", line=line)
        self.messages.append(Message(role, tuple(self.path[opened.start :])))
        self._open_role = None
        self._add_text(self.execution.template.end(role, opened.previous), line, template=True)

    # -- scopes -----------------------------------------------------------------------------------------------------

    def open_scope(self, name: str) -> None:
        """Begin to collect text for the variable `name`."""
        with self.execution.changed:
            self._scopes.append((name, len(self.path)))

    def close_scope(self) -> None:
        """Set the variable of the scope that was opened last to the text since then."""
        with self.execution.changed:
            name, start = self._scopes.pop()
            self.set_variable(name, TextVariable(tuple(self.path[start:])))

    # -- forks ------------------------------------------------------------------------------------------------------

    def fork(self, count: int, line: SourceLine) -> list[Interpreter]:
        """`count` branches that go on from here, each with the open message, messages and variables as of now."""
        with self.execution.changed:
            node = self._add(lambda i, parent: Fork(i, parent, count), line)
            if not isinstance(node, Fork):
                raise AssertionError(f"a fork became {node!r}")
            return [self._child(branch) for branch in self.execution.open_branches(node)]

    def _child(self, branch: int) -> Interpreter:
        child = Interpreter(self.execution, branch)
        child.path = list(self.path)
        child.variables = dict(self.variables)
        child.messages = list(self.messages)
        child._open_role = self._open_role
        child._has_text = self._has_text
        return child

    def gather(self, branches: list[Interpreter], line: SourceLine) -> None:
        """End the branches; each variable that they set becomes the list of their values, without waiting for them.

        A variable that this branch has set itself stays as it is; one that an earlier join gathered is replaced.
        """
        with self.execution.changed:
            self._join(branches, line)
            names = dict.fromkeys(
                name for branch in branches for name in branch.variables if name in branch._own_variables
            )
            for name in names:
                if name not in self.variables or name in self._gathered:
                    members = tuple(branch.variables[name] for branch in branches if name in branch._own_variables)
                    self.set_variable(name, GatheredVariable(members))
                    self._gathered.add(name)

    def concat(self, branches: list[Interpreter], start: int, line: SourceLine) -> None:
        """End the branches and append what each has added after the first `start` nodes of its path. Waits for them.

        Raises:
            NodeFailedError: a generation of theirs failed.
            ProgramError: a branch has opened or closed a message and left it so.
        """
        self._check_roles(branches, line)
        added = tuple(node_id for branch in branches for node_id in branch.path[start:])
        self.execution.wait_for_nodes(added)
        with self.execution.changed:
            text_of(added, self.execution.tree)  # raises before anything is appended
            self._join(branches, line)
            for branch in branches:
                self._append_branch(branch, start, line)

    def _append_branch(self, branch: Interpreter, start: int, line: SourceLine) -> None:
        """Append a branch's text: template text stays so, and its messages become messages of this branch."""
        tree = self.execution.tree
        places = {start: len(self.path)}
        for place, node_id in enumerate(branch.path[start:], start):
            record = tree.records[node_id]
            template = isinstance(record.node, Text) and record.node.template
            self._add_text(record.text, line, template=template)
            places[place + 1] = len(self.path)
        self.messages += branch._messages_since(start, places, self.path)

    def _messages_since(self, start: int, places: dict[int, int], path: list[int]) -> list[Message]:
        """This branch's messages that lie after `start`, with the nodes of their copies on `path`."""
        place_of = {node_id: place for place, node_id in enumerate(self.path)}
        copies = []
        for message in self.messages:
            spots = [place_of[node_id] for node_id in message.node_ids]
            if spots and spots[0] >= start:
                copies.append(Message(message.role, tuple(path[places[spots[0]] : places[spots[-1] + 1]])))
        return copies

    def _join(self, branches: list[Interpreter], line: SourceLine) -> None:
        ends = tuple(branch.path[-1] for branch in branches)
        self._add(lambda i, parent: Join(i, parent, ends), line)
        for branch in branches:
            branch.joined = True

    def _check_roles(self, branches: list[Interpreter], line: SourceLine) -> None:
        for place, branch in enumerate(branches):
            if branch._open_role != self._open_role:
                raise ProgramError(
                    f'join(mode="concat") needs every branch to end as it began, but branch {place} has '
                    "opened or closed a message; close the messages that a branch opens",
                    line=line,
                )
