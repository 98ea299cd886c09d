"""`@function`: a Python function of a state becomes a program that can be run, run in batches and streamed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, Unpack, overload

from palmette.runtime.errors import RequestError

from .backend import Backend
from .batch import iter_runs, run_all
from .errors import ProgramError
from .execution import Execution
from .interpreter import Interpreter
from .options import OPTION_NAMES, SamplingOptions, checked_options
from .run import Run
from .server_info import chosen_backend
from .state import ProgramState

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
else:  # defaults of type variables exist for type checkers only, before Python 3.13
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

MAX_STREAMS = 256
"""Most programs that `Function.stream` lets run at once; a further call waits for one of them to end."""

_RESERVED = ("backend", "stream", "timeout_s")
_stream_slots = threading.BoundedSemaphore(MAX_STREAMS)


class Function(Generic[P, R]):
    """A program. Make one with `function`.

    `run` and its kin take the function's own arguments without the state; they are checked against its signature before
    anything runs. Keyword arguments that are no parameters of the function are sampling options for every `gen` of the
    run, such as ``temperature=0``. They win over the options of `function`; a gen's own win over both.

    The function may be ``async def``: it then reads values by ``await s.get("name")``, and takes no thread.
    """

    __name__: str

    def __init__(
        self,
        program: Callable[Concatenate[ProgramState, P], R],
        *,
        defaults: Mapping[str, Any],
        bound: Mapping[str, Any] | None = None,
    ) -> None:
        self._program = program
        self._defaults = dict(defaults)
        self._bound = dict(bound or {})
        self._signature = _signature_without_state(program)
        functools.update_wrapper(self, program)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ProgramState:
        """Same as `run` on the default backend, with the arguments' types checked."""
        run: Callable[..., ProgramState] = self.run  # P cannot hold run's own `backend` and `stream`
        return run(*args, **kwargs)

    def run(
        self,
        *args: Any,
        backend: Backend | None = None,
        stream: bool = False,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> ProgramState:
        """Run the program in this thread and wait for its end, with all of its generations.

        A generation that failed is raised where its value is read; if nobody read it, `ProgramState.error` has it.
        Ctrl-C ends the run and aborts its generations.

        Args:
            args, kwargs: the function's own arguments, and sampling options.
            backend: what runs the generations; None is the default backend.
            stream: return at once, as `Function.stream`.
            timeout_s: seconds that the run may take; None is any time. A function that then waits for something else
                is not interrupted, it ends at its next step; one that is async is.

        Raises:
            TypeError: the arguments do not fit the function's signature.
            RequestError: a sampling option or `timeout_s` is out of its range.
            NoBackendError: no backend was given and there is no default.
            DeadlineExceededError: the run took longer than `timeout_s`; its generations are aborted.
            ProgramError: the function is async and this thread runs an event loop already; await `run_async`.
            Exception: whatever the function raised; its generations are aborted.
        """
        if stream:
            return self.stream(*args, backend=backend, timeout_s=timeout_s, **kwargs)
        run = self._new_run(args, kwargs, backend, timeout_s=timeout_s)
        if run.is_async:
            _check_no_loop(self._name)
        return run.run()

    async def run_async(
        self, *args: Any, backend: Backend | None = None, timeout_s: float | None = None, **kwargs: Any
    ) -> ProgramState:
        """As `run`, to be awaited. An ``async def`` program runs on this event loop, any other in a thread.

        Cancelling the task aborts the program's generations.

        Raises: as `run`.
        """
        run = self._new_run(args, kwargs, backend, timeout_s=timeout_s)
        return await run.run_on_loop()

    def stream(
        self, *args: Any, backend: Backend | None = None, timeout_s: float | None = None, **kwargs: Any
    ) -> ProgramState:
        """Start the program in a thread of its own and return its state at once, to be read while it runs.

        What the function raises is kept: `ProgramState.error` has it, and reading what it left undone raises it.

        Raises:
            TypeError, RequestError, NoBackendError: as `run`.
        """
        run = self._new_run(args, kwargs, backend, timeout_s=timeout_s, streaming=True)
        _stream_slots.acquire()
        try:
            threading.Thread(target=_run_stream, args=(run,), name=f"palmette-{self._name}", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            _stream_slots.release()
            raise
        return run.state

    @overload
    def run_batch(
        self,
        items: Iterable[Mapping[str, Any] | tuple[Any, ...] | list[Any]],
        *,
        backend: Backend | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[False] = False,
        timeout_s: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> list[ProgramState]: ...
    @overload
    def run_batch(
        self,
        items: Iterable[Mapping[str, Any] | tuple[Any, ...] | list[Any]],
        *,
        backend: Backend | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[True],
        timeout_s: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Iterator[ProgramState]: ...
    def run_batch(
        self,
        items: Iterable[Mapping[str, Any] | tuple[Any, ...] | list[Any]],
        *,
        backend: Backend | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Run the program once for every item, many at a time, and return the states in the items' order.

        A failure stays with its item: `ProgramState.error` has it, and the other items go on.

        Args:
            items: the arguments of each run: a mapping by name, or a tuple or list by place. All are checked before
                any runs.
            backend: what runs the generations; None is the default backend.
            num_threads: most programs at once; "auto" is one for each item, up to 128. Async programs share one
                thread's event loop.
            progress_bar: show one on standard error.
            generator_style: return an iterator of the states instead of a list. It takes items as it needs them, a
                bounded number ahead, so items may be endless; each is checked when it is taken. Closing it stops it.
            timeout_s: seconds that each run may take.
            options: sampling options for every `gen`.

        Raises:
            TypeError: an item does not fit the function's signature; the message says which.
            NoBackendError: as `run`.
            RequestError: a sampling option or `timeout_s` is out of its range.
            ValueError: `num_threads` is not "auto" or a whole number of at least 1.
        """
        given = checked_options(options, f"{self._name}.run_batch()")
        new_run = functools.partial(
            self._new_run, backend=chosen_backend(backend), timeout_s=timeout_s, batch_options=given
        )
        runs = (
            new_run(*_item_arguments(place, item), where=f"item {place} of run_batch")
            for place, item in enumerate(items)
        )
        title = self._name if progress_bar else None
        if generator_style:
            return iter_runs(runs, num_threads=num_threads, title=title)
        return run_all(list(runs), num_threads=num_threads, title=title)

    def bind(self, **kwargs: Any) -> Function[..., R]:
        """The program with some arguments given in advance. Those given by name at the run win.

        Raises:
            TypeError: the function has no such parameter.
        """
        try:
            self._signature.bind_partial(**{**self._bound, **kwargs})
        except TypeError as error:
            raise TypeError(f"{self._name}.bind(): {error}; its signature is {self._usage}") from None
        return Function(self._program, defaults=self._defaults, bound={**self._bound, **kwargs})

    @property
    def bound(self) -> Mapping[str, Any]:
        """The arguments that `bind` gave in advance."""
        return MappingProxyType(self._bound)

    def __repr__(self) -> str:
        return f"<palmette function {self._usage}>"

    # -- arguments --------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return getattr(self._program, "__name__", type(self._program).__name__)

    @property
    def _usage(self) -> str:
        return f"{self._name}{self._signature}"

    def _new_run(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        backend: Backend | None,
        *,
        timeout_s: float | None,
        streaming: bool = False,
        batch_options: Mapping[str, Any] = MappingProxyType({}),
        where: str = "",
    ) -> Run:
        """A run with these arguments, which has not begun. `batch_options` are checked; `where` is named in errors."""
        arguments, options = self._told_apart(kwargs)
        try:
            call = self._signature.bind(*args, **{**self._bound, **arguments})
        except TypeError as error:
            raise TypeError(f"{where or f'{self._name}.run()'}: {error}; its signature is {self._usage}") from None
        execution = Execution(
            chosen_backend(backend),
            name=self._name,
            defaults={**self._defaults, **batch_options, **checked_options(options, f"{self._name}.run()")},
            streaming=streaming,
            timeout_s=_checked_timeout(timeout_s),
        )
        return Run(self._program, call, ProgramState(execution, Interpreter(execution)))

    def _told_apart(self, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The function's own arguments, and sampling options. A parameter of an option's name is the function's."""
        parameters = self._signature.parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return dict(kwargs), {}
        options = {name: value for name, value in kwargs.items() if name in OPTION_NAMES and name not in parameters}
        return {name: value for name, value in kwargs.items() if name not in options}, options


@overload
def function(program: Callable[Concatenate[ProgramState, P], R], /) -> Function[P, R]: ...
@overload
def function(
    **defaults: Unpack[SamplingOptions],
) -> Callable[[Callable[Concatenate[ProgramState, P], R]], Function[P, R]]: ...
def function(program: Callable[..., Any] | None = None, /, **defaults: Any) -> Any:
    """Make a program of a function whose first parameter is its state.

    Args:
        program: the function; ``@function`` gives it.
        defaults: sampling options for every `gen` in it, as in ``@function(temperature=0)``. A gen's own options win.

    Raises:
        TypeError: the function cannot be a program, or an option does not exist.
        RequestError: an option is out of its range.

    >>> import palmette as pt
    >>> @pt.function
    ... def greet(s: pt.ProgramState, name: str) -> None:
    ...     s += f"Hello {name}," + pt.gen("rest", max_tokens=8)
    >>> greet.run("Ada", backend=pt.MockBackend([" how are you?"])).text()
    'Hello Ada, how are you?'
    """
    options = checked_options(defaults, "function()")
    if program is None:
        return lambda decorated: Function(decorated, defaults=options)
    return Function(program, defaults=options)


def _signature_without_state(program: Callable[..., Any]) -> inspect.Signature:
    """The signature that a run's arguments must fit."""
    if not callable(program):
        raise TypeError(f"@function decorates a function, not {program!r}")
    name = getattr(program, "__name__", repr(program))
    if inspect.isgeneratorfunction(program) or inspect.isasyncgenfunction(program):
        raise TypeError(f"@function cannot run {name}: it is a generator function; drop its yield")
    signature = inspect.signature(program)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise TypeError(
            f"@function needs a first parameter for the state, as in def {name}(s, ...), but has {signature}"
        )
    for parameter in parameters:
        if parameter.name in _RESERVED:
            raise TypeError(f"{name}() has a parameter {parameter.name!r}, which run() takes for itself; rename it")
    return signature.replace(parameters=parameters[1:])


def _item_arguments(place: int, item: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An item of a batch as arguments by place and by name."""
    if isinstance(item, Mapping):
        return (), dict(item)
    if isinstance(item, tuple | list):
        return tuple(item), {}
    raise TypeError(
        f"item {place} of run_batch must be a mapping of arguments, or a tuple or list of them, "
        f"not {type(item).__name__}: {item!r}"
    )


def _checked_timeout(timeout_s: float | None) -> float | None:
    number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (number and 0 < timeout_s <= threading.TIMEOUT_MAX):
        raise RequestError(f"timeout_s must be a number of seconds above 0, or None, not {timeout_s!r}")
    return timeout_s


def _run_stream(run: Run) -> None:
    try:
        run.run_kept()
    finally:
        _stream_slots.release()


def _check_no_loop(name: str) -> None:
    """Raise ProgramError if this thread runs an event loop, which cannot run another inside."""
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise ProgramError(f"{name} is async and an event loop runs here already; write await {name}.run_async(...)")
