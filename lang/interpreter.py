"""Walks expressions and appends what they stand for to one branch of the request tree."""

from __future__ import annotations

from collections.abc import Callable

from palmette.constrained.grammar import Grammar
from palmette.runtime.program import Fork, Generate, Join, Node, Reference, Select, Text
from palmette.runtime.sampling_params import SamplingParams

from .conversation import Conversation
from .errors import ProgramError
from .execution import Execution
from .expr import Constant, Expr, ExprList, GenExpr, RoleBegin, RoleEnd, SelectExpr, parts
from .reasoning import ReasoningSplit, ThinkTags
from .reference import RefExpr, Source, is_on_the_wire, sources_of
from .source_line import SourceLine
from .tree import ROOT_BRANCH
from .variables import GatheredVariable, NodeVariable, TextVariable, Variable, nodes_of, text_of

NodeMaker = Callable[[int, int | None], Node]
"""Builds a node from its id and its parent's."""


class Interpreter:
    """One branch of a program: where it stands in the tree, and what was said and set on the way there.

    Everything here changes under the execution's lock.

    Attributes:
        path: ids of the nodes that were appended to the branch, those before its forks among them; it only grows.
        tip: the node that the next one continues. Its ancestors are `path`, unless a chat template wrote anew what was
            said before.
        variables: what `s[name]` reads.
        conversation: its messages.
        joined: nothing may follow.
    """

    def __init__(self, execution: Execution, branch: int = ROOT_BRANCH) -> None:
        self.execution = execution
        self.branch = branch
        self.path: list[int] = []
        self.tip: int | None = None
        self.variables: dict[str, Variable] = {}
        self.conversation = Conversation(self)
        self.joined = False
        self._scopes: list[tuple[str, int]] = []
        self._own_variables: set[str] = set()
        self._gathered: set[str] = set()

    # -- expressions ------------------------------------------------------------------------------------------------

    def append(self, expr: Expr, line: SourceLine) -> None:
        """Append an expression.

        Raises:
            ProgramError: a role is opened or closed where it cannot be, or the branch has ended.
            RequestError: sampling options contradict each other.
        """
        for part in parts(expr):
            if needed := self._needed_before(part, line):
                self.execution.wait_for_nodes(needed)
            with self.execution.changed:
                self._append_part(part, line)

    def _needed_before(self, part: Expr, line: SourceLine) -> list[int]:
        """The nodes that must be done before `part` can be appended; mostly none."""
        if isinstance(part, RoleBegin):
            return self.conversation.needed_before_message()
        if not isinstance(part, RefExpr):
            return []
        if part.execution is not self.execution:
            raise ProgramError(f's.ref("{part.name}") belongs to another run; read its value there instead', line=line)
        return [] if is_on_the_wire(part.variable, self.execution.tree) else nodes_of(part.variable)

    def _append_part(self, part: Expr, line: SourceLine) -> None:
        if isinstance(part, Constant):
            self.add_text(part.text, line)
        elif isinstance(part, GenExpr):
            self._add_generation(part, line)
        elif isinstance(part, SelectExpr):
            node = self._add(lambda i, parent: Select(i, parent, part.choices, part.method), line, part.name)
            self._set_answer(part.name, NodeVariable(node.id))
        elif isinstance(part, RoleBegin):
            self.conversation.begin(part.role, line)
        elif isinstance(part, RoleEnd):
            self.conversation.end(part.role, line)
        elif isinstance(part, RefExpr):
            self._add_references(part, line)
        elif not isinstance(part, ExprList):
            raise TypeError(f"no interpretation for {part!r}")

    def add_text(self, text: str, line: SourceLine, *, template: bool = False) -> None:
        """Append constant text, if there is any. The caller holds the lock."""
        if text:
            self._add(lambda i, parent: Text(i, parent, text, template), line)

    def _add_generation(self, expr: GenExpr, line: SourceLine) -> None:
        params = SamplingParams(**{**self.execution.defaults, **expr.options})
        stream, think = self.execution.streaming, expr.think
        begun = think is not None and self._ends_with(think.begin)
        grammar = _after_reasoning(expr.grammar, think, begun)
        node = self._add(lambda i, parent: Generate(i, parent, params, grammar, expr.n, stream), line, expr.name)
        if think is None:
            self._set_answer(expr.name, NodeVariable(node.id, expr.reader))
            return
        self._set_answer(expr.name, NodeVariable(node.id, expr.reader, ReasoningSplit(think, "answer", begun)))
        if expr.name is not None:
            reasoning = ReasoningSplit(think, "reasoning", begun)
            self.set_variable(f"{expr.name}_reasoning_content", NodeVariable(node.id, None, reasoning))

    def _ends_with(self, text: str) -> bool:
        """Whether the branch ends with `text` as constant text of one node, white space apart."""
        for record in self.execution.tree.path(self.tip):
            if isinstance(record.node, Text) and record.text.strip():
                return record.text.rstrip().endswith(text)
            if not isinstance(record.node, Text | Fork | Join):
                return False
        return False

    def _add_references(self, expr: RefExpr, line: SourceLine) -> None:
        for source in sources_of(expr, self.execution.tree, line):
            if isinstance(source, Source):
                self._add(lambda i, parent, s=source: Reference(i, parent, s.node_id, s.unquoted), line, expr.name)  # type: ignore[misc]  # mypy cannot infer a lambda's default
            else:
                self.add_text(source, line)

    def _set_answer(self, name: str | None, variable: Variable) -> None:
        if name is not None:
            self.set_variable(name, variable)

    def set_variable(self, name: str, variable: Variable) -> None:
        """Set a variable of this branch; an older one of that name is replaced. The caller holds the lock."""
        self.variables[name] = variable
        self._own_variables.add(name)
        self._gathered.discard(name)

    def _add(self, make: NodeMaker, line: SourceLine, name: str | None = None) -> Node:
        node = self.add_hidden(make, line, name)
        self.path.append(node.id)
        return node

    def add_hidden(self, make: NodeMaker, line: SourceLine, name: str | None = None) -> Node:
        """Append a node that says anew what `path` holds already. The caller holds the lock."""
        if self.joined:
            raise ProgramError("this branch was joined; append to the state that was forked", line=line)
        tip = self.tip
        node = self.execution.add(lambda node_id: make(node_id, tip), branch=self.branch, line=line, name=name)
        self.tip = node.id
        return node

    def nodes(self) -> tuple[int, ...]:
        """Ids of the nodes from the root to the tip: what a model reads. The caller holds the lock."""
        return tuple(record.node.id for record in self.execution.tree.path(self.tip))[::-1]

    def check_invariants(self) -> None:
        """What was appended leads from the root down, unless it was written anew. The caller holds the lock."""
        records = self.execution.tree.records
        if not self.conversation.rewritten:
            assert self.nodes() == tuple(self.path)
        assert all(node_id < len(records) for node_id in self.path)
        assert all(node_id in self.path for message in self.conversation.messages for node_id in message.node_ids)
        assert self._gathered <= self._own_variables <= self.variables.keys()

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
        child.tip = self.tip
        child.variables = dict(self.variables)
        child.conversation = self.conversation.copy_for(child)
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
            self.add_text(record.text, line, template=template)
            places[place + 1] = len(self.path)
        self.conversation.take_copies(branch.conversation, start, places)

    def _join(self, branches: list[Interpreter], line: SourceLine) -> None:
        ends = tuple(branch.tip for branch in branches if branch.tip is not None)
        self._add(lambda i, parent: Join(i, parent, ends), line)
        for branch in branches:
            branch.joined = True

    def _check_roles(self, branches: list[Interpreter], line: SourceLine) -> None:
        for place, branch in enumerate(branches):
            if branch.conversation.open_role != self.conversation.open_role:
                raise ProgramError(
                    f'join(mode="concat") needs every branch to end as it began, but branch {place} has '
                    "opened or closed a message; close the messages that a branch opens",
                    line=line,
                )


def _after_reasoning(grammar: Grammar | None, think: ThinkTags | None, begun: bool) -> Grammar | None:
    """The grammar of a whole answer, where that of the part after the reasoning is `grammar`."""
    if grammar is None or think is None:
        return grammar
    return Grammar.reasoning(grammar, begin=think.begin, end=think.end, begun=begun)
