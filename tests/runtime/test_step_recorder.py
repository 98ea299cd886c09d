"""What a recorder asks of CUDA, in which order, also when something fails. Its twin in tests/gpu asks a real GPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from palmette.runtime.errors import EngineError
from palmette.runtime.step_recorder import CudaStepRecorder


class _Cuda:
    """Stands for torch's interface to CUDA.

    Attributes:
        log: what was asked of it.
        breaks: the next recording is broken off by the driver.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.breaks = False

    def stream(self, name: str) -> Any:
        return _Stream(name, self.log)

    def graph(self) -> _Graph:
        return _Graph(self)


class _Stream:
    device_index = 0

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self._log = log

    def wait_stream(self, other: _Stream) -> None:
        self._log.append(f"{self.name} waits for {other.name}")


class _Graph:
    def __init__(self, cuda: _Cuda) -> None:
        self._cuda = cuda

    def capture_begin(self, pool: object = None, *, capture_error_mode: str) -> None:
        self._cuda.log.append("begin")

    def capture_end(self) -> None:
        self._cuda.log.append("end")
        if self._cuda.breaks:
            self._cuda.breaks = False
            raise RuntimeError("the recording was invalidated")

    def replay(self) -> None:
        self._cuda.log.append("replay")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> _Cuda:
    cuda = _Cuda()
    main = cuda.stream("main")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: cuda.stream("side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", cuda.graph)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *_: cuda.log.append("told"), raising=False)
    return cuda


@pytest.fixture
def recorder(cuda: _Cuda) -> CudaStepRecorder:
    """One that has taken its memory already."""
    recorder = CudaStepRecorder(torch.device("cpu"), 64)
    with recorder.aside():
        pass
    assert cuda.log == ["side waits for main", "begin", "end", "main waits for side"]
    cuda.log.clear()
    return recorder


def test_a_recording_is_replayed(cuda: _Cuda, recorder: CudaStepRecorder) -> None:
    """The memory is taken once; what was recorded is launched when it is asked for."""
    with recorder.aside():
        recorder.begin()
        replay = recorder.end()
    assert cuda.log == ["side waits for main", "begin", "end", "main waits for side"]
    replay()
    assert cuda.log[-1] == "replay"


def _fail(recorder: CudaStepRecorder) -> None:
    with recorder.aside():
        recorder.begin()
        raise ValueError("of the model")


def test_an_error_ends_the_recording(cuda: _Cuda, recorder: CudaStepRecorder) -> None:
    """The stream does not stay in it, the streams are joined, and the next recording is like any other."""
    with pytest.raises(ValueError, match="of the model"):
        _fail(recorder)
    assert cuda.log == ["side waits for main", "begin", "end", "main waits for side"]
    cuda.log.clear()
    test_a_recording_is_replayed(cuda, recorder)


def test_nothing_follows_a_recording_that_was_broken_off(cuda: _Cuda, recorder: CudaStepRecorder) -> None:
    """The first error is the one that is told; torch's allocator is told the end, and takes no other recording.

    One that ends well, of nothing that matters, tells the GPU's random generator.
    """
    cuda.breaks = True
    with pytest.raises(ValueError, match="of the model"):
        _fail(recorder)
    assert cuda.log == ["side waits for main", "begin", "end", "told", "begin", "end", "main waits for side"]
    with pytest.raises(EngineError, match="broken off"):
        _fail(recorder)
