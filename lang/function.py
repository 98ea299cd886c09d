"""`@function`: a Python function of a state becomes a program that can be run, run in batches and streamed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Unpack, overload

from .backend import Backend, checked_backend, default_backend
from .compiled_program import CompiledProgram
from .compiling import compile_program
from .dry_execution import stop_if_compiled
from .errors import ProgramError
from .execution import Execution
from .interpreter import Interpreter
from .options import OPTION_NAMES, SamplingOptions, checked_options
from .run import Run
from .run_batch import RunsBatches
from .server_info import chosen_backend
from .signature import checked_speculation, checked_timeout, signature_without_state
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

_stream_slots = threading.BoundedSemaphore(MAX_STREAMS)


class Function(RunsBatches, Generic[P, R]):
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
        num_api_spec_tokens: int | None = None,
    ) -> None:
        self._program = program
        self._num_api_spec_tokens = num_api_spec_tokens
        self._defaults = dict(defaults)
        self._bound = dict(bound or {})
        self._signature = signature_without_state(program)
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

    def compile(self, *args: Any, backend: Backend | None = None, **kwargs: Any) -> CompiledProgram:
        """The request tree that a run with these arguments would build, up to the first value that it reads.

        The function is called, in this thread, and nothing is sent anywhere. Where it reads a value, which only a run
        has, it is ended by an exception that ``except Exception`` does not take; its ``finally`` blocks run. What it
        does besides appending, such as writing a file or counting, it does here too, as far as it gets. Each function
        of `forks.map` is followed up to the first value that it reads itself. A program that is run from within this
        one does not run, as its values are needed there; only in a thread that the function starts itself it does.

        Args:
            args, kwargs: as for `run`.
            backend: whose chat template, sampling defaults and tokenizer are used; None is the default backend. Where
                there is none either, messages have the plain ``ROLE: text`` form. It is not asked for anything.

        Raises:
            TypeError: the arguments do not fit the function's signature.
            RequestError: a sampling option is out of its range.
            Exception: whatever the function raised before it read a value, with a note that says so.

        >>> import palmette as pt
        >>> @pt.function
        ... def greet(s: pt.ProgramState, name: str) -> None:
        ...     s += f"Hello {name}," + pt.gen("rest", max_tokens=8)
        ...     if "?" in s["rest"]:
        ...         s += " Fine." + pt.gen("more")
        >>> compiled = greet.compile("Ada")
        >>> compiled.expected_calls, compiled.is_complete, compiled.leading_text
        (1, False, 'Hello Ada,')
        """
        where = f"{self._name}.compile()"
        call, options = self._told_apart(args, kwargs, where)
        return compile_program(
            self._program,
            call,
            name=self._name,
            defaults={**self._defaults, **checked_options(options, where)},
            backend=default_backend() if backend is None else checked_backend(backend),
        )

    def bind(self, **kwargs: Any) -> Function[..., R]:
        """The program with some arguments given in advance. Those given by name at the run win.

        Raises:
            TypeError: the function has no such parameter.
        """
        try:
            self._signature.bind_partial(**{**self._bound, **kwargs})
        except TypeError as error:
            raise TypeError(f"{self._name}.bind(): {error}; its signature is {self._usage}") from None
        return Function(
            self._program,
            defaults=self._defaults,
            bound={**self._bound, **kwargs},
            num_api_spec_tokens=self._num_api_spec_tokens,
        )

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
        stop_if_compiled()
        call, options = self._told_apart(args, kwargs, where or f"{self._name}.run()")
        execution = Execution(
            chosen_backend(backend),
            name=self._name,
            defaults={**self._defaults, **batch_options, **checked_options(options, f"{self._name}.run()")},
            streaming=streaming,
            timeout_s=checked_timeout(timeout_s),
            num_api_spec_tokens=self._num_api_spec_tokens,
        )
        return Run(self._program, call, ProgramState(execution, Interpreter(execution)))

    def _told_apart(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str
    ) -> tuple[inspect.BoundArguments, dict[str, Any]]:
        """The function's own arguments, and sampling options. A parameter of an option's name is the function's.

        Raises:
            TypeError: the arguments do not fit the function's signature; the message begins with `where`.
        """
        parameters = self._signature.parameters
        options: dict[str, Any] = {}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            options = {name: value for name, value in kwargs.items() if name in OPTION_NAMES and name not in parameters}
        arguments = {name: value for name, value in kwargs.items() if name not in options}
        try:
            return self._signature.bind(*args, **{**self._bound, **arguments}), options
        except TypeError as error:
            raise TypeError(f"{where}: {error}; its signature is {self._usage}") from None


@overload
def function(program: Callable[Concatenate[ProgramState, P], R], /) -> Function[P, R]: ...
@overload
def function(
    *, num_api_spec_tokens: int | None = None, **defaults: Unpack[SamplingOptions]
) -> Callable[[Callable[Concatenate[ProgramState, P], R]], Function[P, R]]: ...
def function(
    program: Callable[..., Any] | None = None, /, *, num_api_spec_tokens: int | None = None, **defaults: Any
) -> Any:
    """Make a program of a function whose first parameter is its state.

    Args:
        program: the function; ``@function`` gives it.
        num_api_spec_tokens: on an `OpenAIBackend`, let one request answer several generations of a line. One that ends
            at a stop is asked for without it, in up to so many tokens, or its own max_tokens where that is more; those
            after it take their answers from what the model went on with, as far as it wrote the program's text between
            them. What it wrote beyond that is paid for and not used. Other backends need no such guesses.
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
    speculated = checked_speculation(num_api_spec_tokens)
    if program is None:
        return lambda decorated: Function(decorated, defaults=options, num_api_spec_tokens=speculated)
    return Function(program, defaults=options, num_api_spec_tokens=speculated)


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
