"""`run_batch`, a method of a program's function."""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, Unpack, overload

from .backend import Backend
from .batch import Batch, BatchOptions, Item
from .dry_execution import stop_if_compiled
from .options import SamplingOptions, checked_options
from .run import Run
from .server_info import chosen_backend
from .signature import checked_timeout
from .state import ProgramState


class BatchArguments(SamplingOptions, total=False):
    """What `run_batch` takes by name, whatever it returns."""

    backend: Backend | None
    num_threads: int | Literal["auto"]
    progress_bar: bool
    order: Literal["prefix", "given"]
    results_file: str | os.PathLike[str] | None
    resume: bool
    timeout_s: float | None


class RunsBatches(ABC):
    """What a function can do with many items; `Function` is one."""

    _program: Callable[..., Any]

    @property
    @abstractmethod
    def _name(self) -> str: ...

    @abstractmethod
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
        """A run with these arguments, which has not begun."""

    @overload
    def run_batch(
        self,
        items: Iterable[Item],
        *,
        generator_style: Literal[False] = False,
        as_finished: Literal[False] = False,
        **options: Unpack[BatchArguments],
    ) -> list[ProgramState]: ...
    @overload
    def run_batch(
        self,
        items: Iterable[Item],
        *,
        generator_style: Literal[True],
        as_finished: bool = False,
        **options: Unpack[BatchArguments],
    ) -> Generator[ProgramState, None, None]: ...
    @overload
    def run_batch(
        self,
        items: Iterable[Item],
        *,
        generator_style: bool = False,
        as_finished: Literal[True],
        **options: Unpack[BatchArguments],
    ) -> Generator[ProgramState, None, None]: ...
    def run_batch(
        self,
        items: Iterable[Item],
        *,
        backend: Backend | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        as_finished: bool = False,
        order: Literal["prefix", "given"] = "prefix",
        results_file: str | os.PathLike[str] | None = None,
        resume: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> list[ProgramState] | Generator[ProgramState, None, None]:
        """Run the program once for every item, many at a time, and return the states in the items' order.

        A failure stays with its item: `ProgramState.error` has it, and the other items go on. Ctrl-C cancels what runs.

        Args:
            items: the arguments of each run: a mapping by name, or a tuple or list by place. All are checked before
                any runs.
            backend: what runs the generations; None is the default backend.
            num_threads: most programs at once; "auto" is one for each item, up to 128. Async programs share one
                thread's event loop.
            progress_bar: show on standard error how many items are done and failed, tokens a second, the hit rate of
                prompts and the time left: a bar on a terminal, elsewhere a line every ten seconds and one at the end.
            generator_style: return a generator of the states instead of a list. It takes items as it needs them, a
                bounded number ahead, so items may be endless; each is checked when it is taken, and a wrong one is
                raised after the states before it. Items without a length are taken in a thread of their own, so that
                no state waits for the next item. Closing it cancels what runs.
            as_finished: as `generator_style`, but states come as their programs end; `ProgramState.place` is the item's
                place.
            order: of beginning. "prefix": items whose arguments are equal, or begin alike, for 64 characters or more
                follow each other, so that the text which their prompts share is still in the cache. Where nothing is
                shared it is the given order, and so it is where items are taken one by one. "given": always.
            results_file: append a line of JSON for every item that has ended, as `palmette batch` writes it: its place
                (``index``), arguments, variables, returned value and error. At the end they stand in the items' order.
            resume: go on with a results file. Items that it holds without an error are not run again: their states have
                the variables and the returned value that it holds, as plain JSON values. A line that a kill has cut
                off is one that is not there.
            timeout_s: seconds that each run may take.
            options: sampling options for every `gen`.

        Raises:
            TypeError: an item does not fit the function's signature; the message says which. Or an argument is of the
                wrong type.
            NoBackendError: as `run`.
            RequestError: a sampling option or `timeout_s` is out of its range.
            ResultsFileError: the results file has something in it and `resume` is False, holds other items, is none, is
                written by another batch, or cannot be written.
            ValueError: `num_threads` is not "auto" or a whole number of at least 1, `order` is neither of the two, or
                ``resume=True`` has no file.
        """
        stop_if_compiled()
        how = BatchOptions(
            num_threads=num_threads,
            generator_style=generator_style,
            as_finished=as_finished,
            order=order,
            progress_bar=progress_bar,
            results_file=results_file,
            resume=resume,
        )
        new_run = functools.partial(
            self._run_of_item,
            backend=chosen_backend(backend),
            timeout_s=checked_timeout(timeout_s),
            options=checked_options(options, f"{self._name}.run_batch()"),
        )
        batch = Batch(self._name, self._program, items, new_run, how)
        return batch.iterate() if generator_style or as_finished else batch.run_all()

    def _run_of_item(
        self, place: int, item: Item, *, backend: Backend, timeout_s: float | None, options: Mapping[str, Any]
    ) -> Run:
        """The run of an item of a batch, which has not begun; `options` are the batch's, and checked."""
        args, kwargs = _item_arguments(place, item)
        return self._new_run(
            args, kwargs, backend, timeout_s=timeout_s, batch_options=options, where=f"item {place} of run_batch"
        )


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
