"""Recording of launches: how much memory many recordings take, and what an error in one of them leaves behind."""

from __future__ import annotations

import pytest
import torch

from palmette.runtime.errors import EngineError
from palmette.runtime.step_recorder import CudaStepRecorder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_recordings_of_rising_sizes_share_memory() -> None:
    """They take no more than the largest, and each gives what it should when it is replayed."""
    device = torch.device("cuda", torch.cuda.current_device())
    sizes = [1 << 20, 5 << 20, 9 << 20, 16 << 20]
    given = [torch.full((size,), float(size), device=device) for size in sizes]
    expected = [2 * x for x in given]
    recorder = CudaStepRecorder(device, 4 * sizes[-1])
    recorded = []
    with recorder.aside():
        before = torch.cuda.memory_reserved(device)
    for x in given:
        with recorder.aside():
            recorder.begin()
            y = x * 2
            replay = recorder.end()
            recorded.append((replay, recorder.lent(y)))
            del y
    assert torch.cuda.memory_reserved(device) == before
    for twice, (replay, lent) in zip(expected, recorded, strict=True):
        replay()
        assert torch.equal(lent, twice)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lent_memory_has_the_shape_of_what_was_recorded(dtype: torch.dtype) -> None:
    """Also where it is a part of a larger tensor."""
    device = torch.device("cuda", torch.cuda.current_device())
    x = torch.randn(64, 96, device=device).to(dtype)
    expected = (x * 2)[:, 3:40]
    recorder = CudaStepRecorder(device, 1 << 20)
    with recorder.aside():
        recorder.begin()
        y = (x * 2)[:, 3:40]
        replay = recorder.end()
    lent = recorder.lent(y)
    replay()
    assert lent.shape == (64, 37)
    assert torch.equal(lent, expected)


def test_an_error_in_a_recording_leaves_the_device_as_it_was() -> None:
    """The stream computes again. What could be ended is followed by others; what the driver broke off is the last."""
    device = torch.device("cuda", torch.cuda.current_device())
    x = torch.ones(1000, device=device)
    assert (x * 3).mul_(1).sum().item() == 3000  # a kernel's first launch loads it
    recorder = CudaStepRecorder(device, 1 << 20)

    def record_waiting() -> None:
        with recorder.aside():
            recorder.begin()
            (x * 3).sum().item()  # a recording does not allow it

    def record_failing() -> None:
        with recorder.aside():
            recorder.begin()
            x.mul_(3)
            raise ValueError("of the model")

    def record_well() -> torch.Tensor:
        with recorder.aside():
            recorder.begin()
            y = x * 3
            replay = recorder.end()
        replay()
        return y

    with pytest.raises(ValueError, match="of the model"):
        record_failing()
    assert record_well().sum().item() == 3000
    with pytest.raises(RuntimeError):
        record_waiting()
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.randn(10, device=device).std().item() > 0  # random numbers are the whole process's
    torch.cuda.empty_cache()
    assert torch.full((1000,), 2.0, device=device).sum().item() == 2000
    with pytest.raises(EngineError, match="broken off"):
        record_well()
    recorder = CudaStepRecorder(device, 1 << 20)  # another engine's
    assert record_well().sum().item() == 3000
