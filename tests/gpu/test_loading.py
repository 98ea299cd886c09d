"""Weights read onto a GPU are those of the files, and nothing of the reading stays behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.tiny_models import write_tiny_model

from palmette.runtime.layers.placement import Placement, TensorSlot
from palmette.runtime.safetensors_files import SafetensorsFile
from palmette.runtime.tensor_reader import read_tensors
from palmette.runtime.weights import load_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def pinned_bytes() -> int:
    """Page-locked memory that torch holds, used or not."""
    stats = torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
    return int(stats.get("allocated_bytes.current", 0))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_is_the_same_on_both_devices(tmp_path: Path, world: int, dtype: torch.dtype) -> None:
    """Every rank's shard of several files: rows, columns and fused parameters, converted or not."""
    folder = write_tiny_model(tmp_path, shards=3)
    for rank in range(world):
        here = load_model(folder, Placement(rank, world, dtype=dtype)).slots()
        there = load_model(folder, Placement(rank, world, dtype=dtype, device=CUDA)).slots()
        for name, slot in here.items():
            assert torch.equal(slot.target, there[name].target.cpu()), name


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("dim", "start", "length"), [(0, 0, 5000), (0, 1250, 1250), (1, 768, 257)])
def test_large_tensors_arrive_in_pieces(
    tmp_path: Path, stored: torch.dtype, target: torch.dtype, dim: int, start: int, length: int
) -> None:
    """Many pieces of several readers into poisoned memory, beside a tensor of a few bytes."""
    tensors = {"large": torch.randn(5000, 1031).to(stored), "small": torch.randn(3).to(stored)}
    save_file(tensors, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    shape = (length, 1031) if dim == 0 else (5000, length)
    slots = {
        "large": TensorSlot((5000, 1031), torch.full(shape, float("nan"), dtype=target, device=CUDA), dim, start),
        "small": TensorSlot((3,), torch.full((3,), float("nan"), dtype=target, device=CUDA)),
    }
    wanted = [(file.stored(name, slot), slot) for name, slot in slots.items()]
    read_tensors(wanted, CUDA, readers=5, piece_bytes=1 << 18)
    expected = tensors["large"].narrow(dim, start, length).to(target)
    assert torch.equal(slots["large"].target.cpu(), expected)
    assert torch.equal(slots["small"].target.cpu(), tensors["small"].to(target))


def test_memory_that_kernels_still_write_is_not_filled_too_early(tmp_path: Path) -> None:
    """A target whose memory the current stream is still writing to gets the file's numbers last."""
    values = torch.randn(4096, 4096)
    save_file({"t": values}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    target = torch.empty(4096, 4096, device=CUDA)
    torch.cuda._sleep(400_000_000)  # type: ignore[no-untyped-call]  # cycles: about 0.2 s
    target.fill_(float("nan"))
    slot = TensorSlot((4096, 4096), target)
    read_tensors([(file.stored("t", slot), slot)], CUDA)
    assert torch.equal(target.cpu(), values)


def test_nothing_but_the_weights_stays(tmp_path: Path) -> None:
    """What loading reserves on the device is what the weights take, but for the allocator's own rounding."""
    save_file({"t": torch.randn(8192, 4096)}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    target = torch.empty(8192, 4096, dtype=torch.bfloat16, device=CUDA)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, pinned_before = torch.cuda.memory_reserved(), pinned_bytes()
    slot = TensorSlot((8192, 4096), target)
    read_tensors([(file.stored("t", slot), slot)], CUDA)
    assert torch.cuda.memory_reserved() == before
    assert pinned_bytes() <= pinned_before


def test_random_weights_are_the_same_for_any_number_of_ranks(tmp_path: Path) -> None:
    """Each rank's part is that part of the whole model, and the memory of drawing it is given back."""
    folder = write_tiny_model(tmp_path)
    whole = load_model(folder, Placement(device=CUDA), load_format="dummy", seed=3).slots()
    for rank in range(2):
        part = load_model(folder, Placement(rank, 2, device=CUDA), load_format="dummy", seed=3).slots()
        for name, slot in part.items():
            wanted = whole[name].target.narrow(slot.dim, slot.start, slot.length)
            assert torch.equal(slot.target, wanted), name
