"""`ProgramState`: what a program's function writes to and reads from, and what a run returns."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NoReturn, Self, overload

from .api import role_message
from .chat_rendering import Role
from .errors import ProgramError, UnknownVariableError
from .execution import Execution
from .expr import Expr, RoleBegin, RoleEnd, as_expr
from .interpreter import Interpreter
from .reference import RefExpr
from .source_line import calling_line
from .state_group import ProgramStateGroup
from .text_cursor import wait_async
from .text_reading import GrowingValue, TextReading
from .tool import Tool
from .trace import RunTrace
from .tree_view import TreeView
from .variables import FixedVariable, Variable, meta_info_of, nodes_of, text_of, value_of

RoleBlock = AbstractContextManager[None]


class ProgramState:
    """A branch of a program: its text so far and its variables.

    An ``async def`` program awaits values: ``await s.get("x")``, or ``await s.ready()`` and then any of the reads.

    Inside the program ``s += ...`` appends and ``s["x"]`` reads; appending never waits, reading waits for that value.
    The state that `Function.run` returns is read in the same way. While the program still runs (`Function.stream`),
    reads from outside wait for what the program has yet to append. So do threads that a streamed program starts itself;
    those of `forks.map` read as the program does.

    Attributes:
        place: in a batch, the item's place among the items, from 0; None elsewhere, and in branches.
    """

    place: int | None = None

    def __init__(self, execution: Execution, interpreter: Interpreter) -> None:
        self._execution = execution
        self._interpreter = interpreter

    def __iadd__(self, expr: str | Expr) -> Self:
        """Append a string or an expression.

        Raises:
            TypeError: it is neither.
            ProgramError: a role is opened or closed where it cannot be, or the branch has ended.
        """
        self._interpreter.append(as_expr(expr, "`s +=`"), calling_line())
        return self

    # -- variables --------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The value of a variable, once it is known: text, or of the type that its `gen` was given; a list for
        ``n > 1`` or after a join.

        Raises:
            UnknownVariableError: nothing of that name was set; a KeyError too.
            NodeFailedError: its generation failed; the cause is the original error.
            ProgramError: its text is no value of the type: the answer was cut off.
        """
        variable = self._known(name)
        with self._execution.changed:
            return value_of(variable, self._execution.tree)

    async def get(self, name: str) -> Any:
        """As ``s[name]``, to be awaited."""
        variable = await wait_async(self._execution, lambda: self._find(name))
        await self._wait_for(nodes_of(variable))
        with self._execution.changed:
            return value_of(variable, self._execution.tree)

    async def ready(self) -> None:
        """Wait until all that was appended to this branch is known, so that reading it waits no more."""
        with self._execution.changed:
            node_ids = self._interpreter.nodes()
        await wait_async(self._execution, self._execution.settled(node_ids))

    def sync(self) -> None:
        """As `ready`, without asyncio."""
        with self._execution.changed:
            node_ids = self._interpreter.nodes()
        self._execution.wait(self._execution.settled(node_ids))

    async def _wait_for(self, node_ids: Iterable[int]) -> None:
        await wait_async(self._execution, self._execution.all_done(node_ids))

    def ref(self, name: str, *, separator: str | None = None) -> Expr:
        """The text of a variable as an expression to append, whether it is known yet or not. Nothing waits.

        The runtime puts the text in its place as soon as it is there: ``s += "Sum up: " + s.ref("draft")``, or in
        `template`. The expression may be appended to any branch of this run.

        Args:
            name: a variable that was set already.
            separator: stands between the values of a variable that has several (``n > 1``, or after a join).

        Raises:
            UnknownVariableError: the variable was not set.
        """
        _check_name(name)
        with self._execution.changed:
            variable = self._interpreter.variables.get(name)
            if variable is None:
                raise self._unknown(name) from self._execution.failure
        return RefExpr(self._execution, name, variable, separator)

    get_var = __getitem__
    """SGLang's name for ``s[name]``."""

    def __setitem__(self, name: str, value: Any) -> None:
        """Keep a value of the program's own under a variable's name. It adds no text."""
        _check_name(name)
        with self._execution.changed:
            self._interpreter.set_variable(name, FixedVariable(value))

    set_var = __setitem__
    """SGLang's name for ``s[name] = value``."""

    def __contains__(self, name: object) -> bool:
        """Whether the variable was set so far; its value may not be known yet. Never waits."""
        with self._execution.changed:
            return name in self._interpreter.variables

    def variable_names(self) -> tuple[str, ...]:
        """The variables set so far, in the order in which they were first set. Never waits."""
        with self._execution.changed:
            return tuple(self._interpreter.variables)

    def get_meta_info(self, name: str) -> Any:
        """What the backend says of a variable's answer, once it is known.

        For a `gen` the fields of `Completion` and ``elapsed_s``, for a `select` ``choice``, ``scores``,
        ``prompt_tokens``, ``cached_tokens`` and ``elapsed_s``, as a dict; for ``n > 1`` and after a join, a list.

        Raises:
            UnknownVariableError, NodeFailedError: as for reading the value.
        """
        variable = self._known(name)
        with self._execution.changed:
            return meta_info_of(variable, self._execution.tree)

    def _known(self, name: str) -> Variable:
        """The variable, its nodes done."""
        variable = self._execution.wait(lambda: self._find(name))
        self._execution.wait_for_nodes(nodes_of(variable))
        return variable

    def _find(self, name: str) -> Variable | None:
        """The variable, or None while the program may yet set it. The caller holds the lock."""
        _check_name(name)
        variable = self._interpreter.variables.get(name)
        if variable is None and self._is_over():
            raise self._unknown(name) from self._execution.failure
        return variable

    def _unknown(self, name: str) -> UnknownVariableError:
        known, failure = list(self._interpreter.variables), self._execution.failure
        close = difflib.get_close_matches(name, known, n=1)
        hint = f'; did you mean "{close[0]}"?' if close else ""
        if failure is not None:
            hint += f"; the program ended before by {type(failure).__name__}: {failure}"
        variables = f"the variables are {', '.join(known)}" if known else "no variable is set"
        return UnknownVariableError(f's["{name}"] was never set; {variables}{hint}', line=calling_line())

    def _is_over(self) -> bool:
        """Whether nothing more can come to this branch while the caller waits."""
        return self._execution.ended or self._interpreter.joined or self._execution.on_program_thread

    # -- text -------------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """All text of the branch from the root, once it is known.

        Raises:
            NodeFailedError: a generation on the way failed.
        """
        node_ids = self._all_nodes()
        with self._execution.changed:
            return text_of(node_ids, self._execution.tree)

    def messages(self) -> list[dict[str, str]]:
        """The closed messages as ``{"role": ..., "content": ...}``, once they are known.

        Raises:
            NodeFailedError: a generation in one of them failed.
        """
        self._all_nodes()
        with self._execution.changed:
            tree = self._execution.tree
            return [
                {"role": message.role, "content": text_of(message.node_ids, tree)}
                for message in self._interpreter.conversation.messages
            ]

    def _all_nodes(self) -> tuple[int, ...]:
        """The branch's nodes, all of them done."""
        node_ids = self._execution.wait(lambda: self._interpreter.nodes() if self._is_over() else None)
        self._execution.wait_for_nodes(node_ids)
        return node_ids

    def text_iter(self, var_name: str | None = None, *, answer: int = 0) -> Iterator[str]:
        """The branch's text, or one variable's, in pieces as they come. The pieces join to the whole text.

        Called from outside a running program, it ends with the program. Called by the program itself, it ends with what
        was appended so far. For values that are not text it is what the model wrote, the quotes of a string included.

        Args:
            var_name: the variable; None is all that is appended to the branch.
            answer: which answer to follow of a variable with ``n > 1``.

        Raises:
            UnknownVariableError: the variable was never set.
            NodeFailedError: a generation failed; what came before it has been yielded.
            ProgramError: the variable has no such answer, or is no text of this branch.
        """
        reading = TextReading(self, var_name, answer)
        while pieces := self._execution.wait(reading.poll):
            yield from reading.shown(pieces)
        yield from reading.rest()

    async def text_async_iter(self, var_name: str | None = None, *, answer: int = 0) -> AsyncIterator[str]:
        """As `text_iter`, for ``async for``. It takes no thread."""
        reading = TextReading(self, var_name, answer)
        while pieces := await wait_async(self._execution, reading.poll):
            for piece in reading.shown(pieces):
                yield piece
        for piece in reading.rest():
            yield piece

    def value_iter(self, name: str) -> Iterator[Any]:
        """A variable's value while it is written, whenever more of it is certain. Of what is not JSON, the end alone.

        Unfinished values are plain: dicts with the members that have begun, lists, strings so far. The last one is
        ``s[name]`` itself.

        Raises: as `text_iter` and ``s[name]``.
        """
        growing = GrowingValue()
        for piece in self.text_iter(name):
            yield from growing.push(piece)
        yield self[name]

    async def value_async_iter(self, name: str) -> AsyncIterator[Any]:
        """As `value_iter`, for ``async for``."""
        growing = GrowingValue()
        async for piece in self.text_async_iter(name):
            for value in growing.push(piece):
                yield value
        yield await self.get(name)

    def _text_is_over(self) -> bool:
        if self._execution.ended and self._execution.failure is not None:
            raise self._execution.failure
        return self._is_over()

    # -- messages and scopes ----------------------------------------------------------------------------------------

    @overload
    def system(self, content: str | Expr) -> None: ...
    @overload
    def system(self) -> RoleBlock: ...
    def system(self, content: str | Expr | None = None) -> RoleBlock | None:
        """Append a system message; without content a block: ``with s.system(): s += ...``."""
        return self._role("system", content)

    @overload
    def user(self, content: str | Expr) -> None: ...
    @overload
    def user(self) -> RoleBlock: ...
    def user(self, content: str | Expr | None = None) -> RoleBlock | None:
        """Append a user message; without content a block: ``with s.user(): s += ...``."""
        return self._role("user", content)

    @overload
    def assistant(self, content: str | Expr) -> None: ...
    @overload
    def assistant(self) -> RoleBlock: ...
    def assistant(self, content: str | Expr | None = None) -> RoleBlock | None:
        """Append an assistant message; without content a block: ``with s.assistant(): s += ...``."""
        return self._role("assistant", content)

    def _role(self, role: Role, content: str | Expr | None) -> RoleBlock | None:
        if content is None:
            return self._role_block(role)
        self._interpreter.append(role_message(role, content), calling_line())
        return None

    @contextmanager
    def _role_block(self, role: Role) -> Iterator[None]:
        self._interpreter.append(RoleBegin(role), calling_line())
        try:
            yield
        except BaseException:
            with suppress(ProgramError):  # the run has ended, or the block has closed the message itself
                self._interpreter.append(RoleEnd(role), calling_line())
            raise
        self._interpreter.append(RoleEnd(role), calling_line())

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """A block whose text becomes the variable `name` when it ends."""
        _check_name(name)
        self._interpreter.open_scope(name)
        try:
            yield
        finally:
            self._interpreter.close_scope()

    def use_tools(self, *tools: Tool[..., Any]) -> None:
        """Tell the model of these tools at the beginning of the conversation, before its first message.

        Where the model's chat template takes tools, it shows them in the model's own way; elsewhere a system message
        describes them. ``pt.gen("call", tools=[...])`` then makes a call.

        Raises:
            TypeError: one of them is not decorated with `tool`.
            ProgramError: a message was appended before.
        """
        for tool in tools:
            if not isinstance(tool, Tool):
                raise TypeError(f"use_tools() takes functions decorated with @pt.tool, not {tool!r}")
        with self._execution.changed:
            self._interpreter.conversation.use_tools(tools, calling_line())

    # -- forks ------------------------------------------------------------------------------------------------------

    def fork(self, size: int = 1) -> ProgramStateGroup:
        """`size` branches that go on from here side by side. Their shared text is computed once.

        Each starts with this state's open message, messages and variables as they are now.

        Raises:
            ValueError: `size` is not a whole number of at least 1.
        """
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"fork() makes at least 1 branch, not {size!r}; without branches, leave it out")
        branches = self._interpreter.fork(size, calling_line())
        return ProgramStateGroup(self, [ProgramState(self._execution, branch) for branch in branches])

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """A block with one branch that goes on from here: a fork of one, joined when the block ends."""
        group = self.fork(1)
        try:
            yield group[0]
        finally:
            group.join()

    # -- the run ----------------------------------------------------------------------------------------------------

    @property
    def ret_value(self) -> Any:
        """What the program's function returned, once it has.

        Raises:
            ProgramError: the program itself asks.
            Exception: what the function raised.
        """
        if self._execution.on_program_thread:
            raise ProgramError("ret_value exists once the function has returned; the program itself cannot read it")
        self._execution.wait(lambda: True if self._execution.ended else None)
        if self._execution.failure is not None:
            raise self._execution.failure
        return self._execution.value

    def error(self) -> BaseException | None:
        """What went wrong: the function's exception, else the error of the generation that failed first, else None.

        Waits for the end of the program; in the program itself, for what was appended so far.
        """
        ending = self._execution.on_program_thread
        self._execution.wait(lambda: True if ending or self._execution.ended else None)
        self._execution.wait(self._execution.is_complete)
        with self._execution.changed:
            return self._execution.first_error()

    def cancel(self) -> None:
        """Abort the program's generations. A program that still runs fails at its next step."""
        self._execution.cancel()

    @property
    def tree(self) -> TreeView:
        """The program's request tree as it is now: print it, or look into its nodes."""
        return self._execution.view()

    def trace(self) -> RunTrace:
        """The run so far with its timings and tokens, to save for a trace viewer or as a page."""
        return self._execution.trace()

    def _repr_html_(self) -> str:
        """The request tree, for notebooks."""
        return self.tree._repr_html_()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a state belongs to its run and cannot be copied or pickled; keep what you read from it, "
            "or go on from it in a branch: with s.copy() as branch"
        )

    def __repr__(self) -> str:
        with self._execution.changed:
            return (
                f"<ProgramState of {self._execution.name}: {', '.join(self._interpreter.variables) or 'no variables'}>"
            )


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f"a variable's name must be a non-empty string, not {name!r}")
