"""Times of GPU kernels: replays of CUDA graphs over rotating inputs, beside what memory and matrix units allow.

A module of measurements (`kernel_linear`, `kernel_attention`, ...) has `measure(ceilings) -> Iterator[Measured]`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

_L2_BYTES = 60e6
"""Of an H200. Inputs that together are four times as large leave nothing of one another in it."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What one card did at best: bytes a second (read plus written) and bfloat16 operations a second."""

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One kernel at one shape.

    Attributes:
        seconds: median time of one launch.
        bytes_moved: the fewest that must cross device memory.
        flops: operations of the matrix units; 0 where memory is the bound at every size.
        peers: seconds of other implementations of the same function.
    """

    kernel: str
    shape: str
    seconds: float
    bytes_moved: float
    flops: float = 0.0
    peers: dict[str, float] = field(default_factory=dict)

    def bound_s(self, ceilings: Ceilings) -> float:
        """No version runs faster than this."""
        return max(self.bytes_moved / ceilings.bytes_per_s, self.flops / ceilings.flops_per_s)

    def as_json(self, ceilings: Ceilings) -> dict[str, Any]:
        return asdict(self) | {"bound_s": self.bound_s(ceilings)}


def copies_beyond_cache(bytes_of_one: float, least: int = 2, most: int = 256) -> int:
    """How many copies of an input to rotate through so that the L2 cache has forgotten one when its turn comes."""
    return min(most, max(least, int(4 * _L2_BYTES / max(bytes_of_one, 1.0)) + 1))


def graph_seconds(call: Callable[[int], object], *, launches: int = 20, replays: int = 7) -> float:
    """Median seconds of one `call(i)`, i from 0 to launches - 1, all captured in one CUDA graph that is replayed.

    `call` runs a few times before the capture, so that kernels are compiled and memory is allocated.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(min(launches, 3)):
            call(i)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kept = [call(i) for i in range(launches)]
    graph.replay()
    times = [_event_seconds(graph.replay) for _ in range(replays)]
    del kept
    return statistics.median(times) / launches


def _event_seconds(action: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
    begin.record()
    action()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def measured_ceilings() -> Ceilings:
    """A copy of 4 GB within device memory, and a product of two random 8192 x 8192 bfloat16 matrices."""
    source = torch.randint(0, 127, (4 * 10**9,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = graph_seconds(lambda _: target.copy_(source), launches=3, replays=5)
    size = 8192
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    out = torch.empty_like(left)
    product = graph_seconds(lambda _: torch.mm(left, right, out=out), launches=10, replays=5)
    return Ceilings(2 * source.numel() / copy, 2 * size**3 / product)


def random_copies(count: int, *shape: int, scale: float = 1.0) -> list[Tensor]:
    """Independent normal bfloat16 tensors on the GPU."""
    return [torch.randn(*shape, dtype=torch.bfloat16, device="cuda").mul_(scale) for _ in range(count)]


def table(measured: Sequence[Measured], ceilings: Ceilings) -> Iterator[str]:
    """Lines: kernel, shape, microseconds, TB/s, TFLOP/s, share of the bound, and the peers' microseconds."""
    yield f"{'kernel':<20} {'shape':<34} {'us':>9} {'TB/s':>6} {'TF/s':>6} {'bound':>6}  peers, us"
    for m in measured:
        peers = "  ".join(f"{name} {1e6 * seconds:.1f}" for name, seconds in m.peers.items())
        share = m.bound_s(ceilings) / m.seconds
        yield (
            f"{m.kernel:<20} {m.shape:<34} {1e6 * m.seconds:>9.1f} {m.bytes_moved / m.seconds / 1e12:>6.2f}"
            f" {m.flops / m.seconds / 1e12:>6.0f} {share:>6.0%}  {peers}"
        )
