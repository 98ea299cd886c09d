"""`@function`: a Python function of a state becomes a program that can be run, run in batches and streamed."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, Unpack, overload

from .backend import Backend, checked_backend, default_backend
from .batch import run_all
from .errors import NoBackendError
from .execution import Execution
from .interpreter import Interpreter
from .options import SamplingOptions, checked_options
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

_RESERVED = ("backend", "stream")
_stream_slots = threading.BoundedSemaphore(MAX_STREAMS)


class Function(Generic[P, R]):
    """A program. Make one with `function`.

    `run` and its kin take the function's own arguments without the state; they are checked against its signature before
    anything runs.
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

    def run(self, *args: Any, backend: Backend | None = None, stream: bool = False, **kwargs: Any) -> ProgramState:
        """Run the program in this thread and wait for its end, with all of its generations.

        A generation that failed is raised where its value is read; if nobody read it, `ProgramState.error` has it.

        Args:
            args, kwargs: the function's own arguments.
            backend: what runs the generations; None is the default backend.
            stream: return at once, as `Function.stream`.

        Raises:
            TypeError: the arguments do not fit the function's signature.
            NoBackendError: no backend was given and there is no default.
            Exception: whatever the function raised; its generations are aborted.
        """
        if stream:
            return self.stream(*args, backend=backend, **kwargs)
        call = self._checked_call(args, kwargs)
        state = self._new_state(_backend(backend), streaming=False)
        self._execute(state, call)
        return state

    def stream(self, *args: Any, backend: Backend | None = None, **kwargs: Any) -> ProgramState:
        """Start the program in a thread of its own and return its state at once, to be read while it runs.

        What the function raises is kept: `ProgramState.error` has it, and reading what it left undone raises it.

        Raises:
            TypeError, NoBackendError: as `run`.
        """
        call = self._checked_call(args, kwargs)
        state = self._new_state(_backend(backend), streaming=True)
        _stream_slots.acquire()
        thread = threading.Thread(target=self._stream, args=(state, call), name=f"palmette-{self._name}", daemon=True)
        thread.start()
        return state

    def run_batch(
        self,
        items: Iterable[Mapping[str, Any] | tuple[Any, ...]],
        *,
        backend: Backend | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
    ) -> list[ProgramState]:
        """Run the program once for every item, many at a time, and return the states in the items' order.

        A failure stays with its item: `ProgramState.error` has it, and the other items go on.

        Args:
            items: the arguments of each run: a mapping by name, or a tuple by place. All are checked before any runs.
            backend: what runs the generations; None is the default backend.
            num_threads: most programs at once; "auto" is one for each item, up to 128.
            progress_bar: show one on standard error.

        Raises:
            TypeError: an item does not fit the function's signature; the message says which.
            NoBackendError: as `run`.
            ValueError: `num_threads` is not "auto" or a whole number of at least 1.
        """
        calls = [self._checked_item(place, item) for place, item in enumerate(items)]
        chosen = _backend(backend)
        states = [self._new_state(chosen, streaming=False) for _ in calls]
        jobs = [functools.partial(self._execute_kept, state, call) for state, call in zip(states, calls, strict=True)]
        try:
            run_all(jobs, num_threads=num_threads, title=self._name if progress_bar else None)
        except BaseException:
            for state in states:
                state.cancel()
            raise
        return states

    def bind(self, **kwargs: Any) -> Function[..., R]:
        """The program with some arguments given in advance. Those given at the run win.

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

    # -- one run ----------------------------------------------------------------------------------------------------

    def _new_state(self, backend: Backend, *, streaming: bool) -> ProgramState:
        execution = Execution(backend, name=self._name, defaults=self._defaults, streaming=streaming)
        return ProgramState(execution, Interpreter(execution))

    def _execute(self, state: ProgramState, call: inspect.BoundArguments) -> None:
        execution = state._execution
        try:
            execution.start()
            execution.finish(self._program(state, *call.args, **call.kwargs))
        except BaseException as error:
            execution.fail(error)
            raise

    def _execute_kept(self, state: ProgramState, call: inspect.BoundArguments) -> None:
        """Run; the state keeps what the function raises."""
        with contextlib.suppress(Exception):
            self._execute(state, call)

    def _stream(self, state: ProgramState, call: inspect.BoundArguments) -> None:
        try:
            self._execute_kept(state, call)
        finally:
            _stream_slots.release()

    # -- arguments --------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return getattr(self._program, "__name__", type(self._program).__name__)

    @property
    def _usage(self) -> str:
        return f"{self._name}{self._signature}"

    def _checked_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **{**self._bound, **kwargs})
        except TypeError as error:
            raise TypeError(f"{self._name}.run(): {error}; its signature is {self._usage}") from None

    def _checked_item(self, place: int, item: object) -> inspect.BoundArguments:
        if isinstance(item, Mapping):
            args, kwargs = (), item
        elif isinstance(item, tuple):
            args, kwargs = item, {}
        else:
            raise TypeError(
                f"item {place} of run_batch must be a mapping of arguments or a tuple of them, "
                f"not {type(item).__name__}: {item!r}"
            )
        try:
            return self._checked_call(args, kwargs)
        except TypeError as error:
            raise TypeError(f"item {place} of run_batch: {error}") from None


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
    if inspect.iscoroutinefunction(program) or inspect.isgeneratorfunction(program):
        raise TypeError(f"@function cannot run {name}: it is a coroutine or generator function, not a plain one")
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


def _backend(given: Backend | None) -> Backend:
    chosen = default_backend() if given is None else checked_backend(given)
    if chosen is None:
        raise NoBackendError(
            "there is no backend to run on; pass backend=..., or call pt.set_default_backend(pt.runtime.launch()) once"
        )
    return chosen
