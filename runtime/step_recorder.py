"""Recording of what is launched on a device, to be launched again without the host's part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from .errors import EngineError

Replay = Callable[[], None]
"""Launches again what was recorded, over the same memory."""


class StepRecorder(Protocol):
    """Records one stretch of launches at a time."""

    def aside(self) -> AbstractContextManager[None]:
        """Where all recording is done. What is compiled, loaded or allocated once must have been launched before.

        An error in the block ends the stretch that is being recorded; nothing stays half done.
        """

    def begin(self) -> None:
        """Record what is launched from here on; it is not computed. Only inside `aside`."""

    def end(self) -> Replay:
        """Record no more."""

    def lent(self, tensor: Tensor) -> Tensor:
        """Recorded memory that later recordings may use as well: it holds what was computed until the next replay."""


class CudaStepRecorder:
    """See `StepRecorder`: CUDA graphs that share one pool of memory, as no two of them ever run at once.

    Args:
        most_bytes: what the largest stretch takes at once. It is taken in one piece before the first recording:
            otherwise sizes that come in rising order would each find the memory of those before too small.
    """

    def __init__(self, device: torch.device, most_bytes: int) -> None:
        self._device = device
        self._most_bytes = most_bytes
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self._pool = torch.cuda.graph_pool_handle()
        self._keeper: torch.cuda.CUDAGraph | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._broken: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """See `StepRecorder.aside`: on a stream of its own.

        Raises:
            EngineError: an operation that cannot be recorded broke an earlier recording off.
        """
        if self._broken is not None:
            raise EngineError("nothing more is recorded, as an earlier recording was broken off")
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                try:
                    if self._keeper is None:
                        self._keeper = self._reserve()
                    yield
                finally:
                    self._abandon()
        finally:
            current.wait_stream(self._stream)

    def _reserve(self) -> torch.cuda.CUDAGraph:
        """A graph that is never replayed, but holds the pool: its memory is free for the others, and stays theirs."""
        torch.zeros(1, dtype=torch.uint8, device=self._device)  # what loads a kernel must not be recorded
        some = torch.ones(16, 16, device=self._device)
        torch.mm(some, some)  # takes cuBLAS's workspace for this stream, which would split the graphs' memory
        self.begin()
        torch.zeros(self._most_bytes, dtype=torch.uint8, device=self._device)
        return self._end()

    def begin(self) -> None:
        """See `StepRecorder.begin`."""
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> Replay:
        """See `StepRecorder.end`."""
        return self._end().replay

    def _end(self) -> torch.cuda.CUDAGraph:
        assert self._graph is not None
        graph, self._graph = self._graph, None
        try:
            graph.capture_end()
        except RuntimeError:
            self._give_up(graph)
            raise
        return graph

    def _give_up(self, graph: torch.cuda.CUDAGraph) -> None:
        """Record no more: the driver had ended the recording, and torch, which does not expect it, keeps it begun.

        Its allocators go on to ask the graph what is recorded, so that it must live on; the GPU's is told the end. The
        GPU's random generator learns it from the next recording that ends well.
        """
        self._broken = graph
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self._stream.device_index, self._pool)
            number = torch.empty(1, device=self._device)
            with torch.cuda.stream(torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]  # see above
                other = torch.cuda.CUDAGraph()
                other.capture_begin(capture_error_mode="thread_local")
                number.zero_()
                other.capture_end()

    def _abandon(self) -> None:
        """Bring the stream out of a recording that failed. What could not be recorded is told by the first error."""
        if self._graph is not None:
            with suppress(RuntimeError):
                self._end()

    def lent(self, tensor: Tensor) -> Tensor:
        """See `StepRecorder.lent`: a view that does not keep the memory from being given to others."""
        size = 1 + sum((count - 1) * step for count, step in zip(tensor.shape, tensor.stride(), strict=True))
        memory = torch.as_tensor(_Memory(tensor.data_ptr(), size * tensor.itemsize), device=tensor.device)
        return memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


class _Memory:
    """An address, told to torch by NumPy's protocol for arrays on a GPU. Its graph, not a tensor, keeps it."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }
