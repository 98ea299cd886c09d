"""Tensors read by many threads in pieces arrive byte for byte, whole or sliced: the GPU's path, on the CPU."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.tiny_models import random_tensors, tiny_config, write_tiny_model

from palmette.runtime.errors import ModelLoadError
from palmette.runtime.layers.placement import Placement, Slots, TensorSlot
from palmette.runtime.safetensors_files import SafetensorsFile
from palmette.runtime.tensor_reader import StoredTensor, read_tensors, staging_bytes
from palmette.runtime.weights import SafetensorsFolder, fill_randomly, load_config, load_model

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype)


def stored(path: Path, slots: Mapping[str, TensorSlot]) -> list[tuple[StoredTensor, TensorSlot]]:
    file = SafetensorsFile(path)
    return [(file.stored(name, slot), slot) for name, slot in slots.items()]


def write(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, path)
    return path


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, torch.dtype, int, int, int]:
    """A tensor as stored, the dtype of its target, and the slice of it that is wanted: dim, start, length."""
    shape = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    kind, target = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(DTYPES))
    dim = draw(st.integers(0, len(shape) - 1))
    start = draw(st.integers(0, shape[dim] - 1))
    length = draw(st.integers(1, shape[dim] - start))
    values = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))).to(kind)
    return values, target, dim, start, length


@settings(max_examples=60)
@given(
    wanted=st.lists(cases(), min_size=1, max_size=6),
    readers=st.integers(1, 4),
    piece_bytes=st.sampled_from([8, 64, 200, 4096, 1 << 20]),
)
def test_slices_of_any_tensor_arrive(
    tmp_path_factory: pytest.TempPathFactory,
    wanted: list[tuple[torch.Tensor, torch.dtype, int, int, int]],
    readers: int,
    piece_bytes: int,
) -> None:
    """Of any shape and dtype, in pieces smaller or larger than a tensor, a row or a page."""
    path = tmp_path_factory.mktemp("tensors") / "x.safetensors"
    write(path, {str(i): values for i, (values, *_) in enumerate(wanted)})
    slots = {}
    for i, (values, dtype, dim, start, length) in enumerate(wanted):
        shape = (*values.shape[:dim], length, *values.shape[dim + 1 :])
        slots[str(i)] = TensorSlot(tuple(values.shape), poisoned(shape, dtype), dim, start)
    read_tensors(stored(path, slots), CPU, readers=readers, piece_bytes=piece_bytes)
    for i, (values, dtype, dim, start, length) in enumerate(wanted):
        assert torch.equal(slots[str(i)].target, values.narrow(dim, start, length).to(dtype))


def test_parts_of_a_fused_parameter_arrive_beside_each_other(tmp_path: Path) -> None:
    """Rows of one parameter filled from several tensors, by rows and by columns; nothing else is touched."""
    tensors = {name: torch.randn(30, 20) for name in "qkv"}
    fused, columns = poisoned((92, 20), torch.float32), poisoned((30, 9), torch.float32)
    slots = {name: TensorSlot((30, 20), fused[30 * i : 30 * i + 30]) for i, name in enumerate("qkv")}
    slots["v"] = TensorSlot((30, 20), columns[:, 2:7], 1, 11)
    read_tensors(stored(write(tmp_path / "x.safetensors", tensors), slots), CPU, piece_bytes=256)
    assert torch.equal(fused[:60], torch.cat([tensors["q"], tensors["k"]]))
    assert torch.equal(columns[:, 2:7], tensors["v"][:, 11:16])
    assert fused[60:].isnan().all()
    assert columns[:, [0, 1, 7, 8]].isnan().all()


def test_rows_go_to_a_target_that_is_not_contiguous(tmp_path: Path) -> None:
    """A transposed parameter takes a slice of rows."""
    values = torch.randn(16, 6)
    target = poisoned((6, 8), torch.bfloat16).T
    path = write(tmp_path / "x.safetensors", {"t": values})
    read_tensors(stored(path, {"t": TensorSlot((16, 6), target, 0, 5)}), CPU, piece_bytes=64)
    assert torch.equal(target, values[5:13].bfloat16())


def test_a_tensor_without_numbers_needs_nothing(tmp_path: Path) -> None:
    """An empty tensor, and none at all."""
    path = write(tmp_path / "x.safetensors", {"t": torch.empty(0, 4)})
    read_tensors(stored(path, {"t": TensorSlot((0, 4), torch.empty(0, 4))}), CPU)
    SafetensorsFile(path).read_into("t", TensorSlot((0, 4), torch.empty(0, 4)))
    read_tensors([], CPU)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_a_model_is_the_same_as_read_tensor_by_tensor(
    tmp_path: Path, shards: int, world: int, dtype: torch.dtype
) -> None:
    """Every rank's shard, from one file or several, in the file's dtype or another."""
    folder = write_tiny_model(tmp_path, shards=shards)
    for rank in range(world):
        models = [load_model(folder, Placement(rank, world, dtype=dtype)).slots() for _ in range(2)]
        for slot in models[1].values():
            slot.target.fill_(float("nan"))
        SafetensorsFolder(folder).read_all(models[1], CPU)
        for name, slot in models[0].items():
            assert torch.equal(slot.target, models[1][name].target), name


def test_the_buffers_stay_small(tmp_path: Path) -> None:
    """Two pieces a reader, however large the tensors; no more than there is to read; a row where that is longer."""
    path = write(tmp_path / "x.safetensors", {"large": torch.zeros(1000, 100), "small": torch.zeros(3)})
    slots = {"large": TensorSlot((1000, 100), torch.empty(1000, 100)), "small": TensorSlot((3,), torch.empty(3))}
    wanted = stored(path, slots)
    assert staging_bytes(wanted, readers=3, piece_bytes=4096) == 6 * 4096
    assert staging_bytes(wanted, readers=3, piece_bytes=1 << 20) == 2 * 400_000
    assert staging_bytes(wanted[1:], readers=3, piece_bytes=4096) == 16
    columns = TensorSlot((1000, 100), torch.empty(1000, 50), 1, 50)
    assert staging_bytes([(wanted[0][0], columns)], readers=3, piece_bytes=64) == 6 * 400
    all_columns = TensorSlot((1000, 100), torch.empty(1000, 100), 1)  # the one rank's
    assert staging_bytes([(wanted[0][0], all_columns)], readers=3, piece_bytes=64) == 6 * 64


def large_file(path: Path) -> tuple[Path, Slots]:
    tensors = {name: torch.randn(64, 64) for name in ("a", "b", "c")}
    return write(path, tensors), {name: TensorSlot((64, 64), torch.empty(64, 64)) for name in tensors}


def test_a_file_that_was_cut_since_names_the_first_tensor_that_it_breaks(tmp_path: Path) -> None:
    """The header was read before; whichever thread finds the end, the same tensor is named, and all threads end."""
    path, slots = large_file(tmp_path / "x.safetensors")
    wanted = stored(path, slots)
    second = sorted(each.begin for each, _ in wanted)[1]
    name = next(each.name for each, _ in wanted if each.begin == second)
    with path.open("r+b") as file:
        file.truncate(second + 100)
    threads = threading.active_count()
    for _ in range(5):
        with pytest.raises(ModelLoadError, match=rf"x\.safetensors ends within tensor '{name}'"):
            read_tensors(wanted, CPU, piece_bytes=1024)
    assert threading.active_count() == threads


def test_a_file_that_went_away_is_named(tmp_path: Path) -> None:
    """What the system says is told, with the tensor, whichever way it is read."""
    path, slots = large_file(tmp_path / "x.safetensors")
    file, wanted = SafetensorsFile(path), stored(path, slots)
    path.unlink()
    message = r"x\.safetensors cannot be read: .*No such file.*, at tensor"
    with pytest.raises(ModelLoadError, match=message):
        read_tensors(wanted, CPU)
    with pytest.raises(ModelLoadError, match=message):
        file.read_into("a", slots["a"])


def test_headers_are_looked_at_before_anything_is_read(tmp_path: Path) -> None:
    """A tensor of another shape is found while every slot is as it was."""
    folder = write_tiny_model(tmp_path)
    slots = load_model(folder, Placement()).slots()
    for slot in slots.values():
        slot.target.fill_(7)
    slots["model.norm.weight"] = TensorSlot((49,), torch.empty(49))
    with pytest.raises(ModelLoadError, match=r"'model\.norm\.weight' has shape \(48,\)"):
        SafetensorsFolder(folder).read_all(slots, CPU)
    assert all((slot.target == 7).all() for name, slot in slots.items() if name != "model.norm.weight")


@pytest.mark.parametrize("world", [2])
def test_random_weights_are_the_same_for_any_number_of_ranks(tmp_path: Path, world: int) -> None:
    """Each rank's part is that part of the whole model, and the numbers are those of a stream for each tensor."""
    folder = write_tiny_model(tmp_path)
    whole = load_model(folder, Placement(), load_format="dummy", seed=3).slots()
    for rank in range(world):
        part = load_model(folder, Placement(rank, world), load_format="dummy", seed=3).slots()
        for name, slot in part.items():
            wanted = whole[name].target.narrow(slot.dim, slot.start, slot.length)
            assert torch.equal(slot.target, wanted), name


def test_random_matrices_keep_the_size_of_what_passes_through() -> None:
    """Standard deviation 1 / sqrt(inputs), whatever was drawn before."""
    slots = {name: TensorSlot((200, 300), torch.empty(200, 300)) for name in ("a.weight", "b.weight")}
    fill_randomly(slots, seed=0)
    for slot in slots.values():
        assert slot.target.std().item() == pytest.approx(1 / math.sqrt(300), rel=0.02)
    assert not torch.equal(slots["a.weight"].target, slots["b.weight"].target)


def test_the_tiny_model_has_tensors_of_every_kind(tmp_path: Path) -> None:
    """What the tests above rest on: fused layers, slices of rows and of columns."""
    folder = write_tiny_model(tmp_path)
    slots = load_model(folder, Placement(0, 2)).slots()
    assert {slot.dim for slot in slots.values()} == {0, 1}
    assert load_config(folder).num_layers == 3
    assert set(slots) == set(random_tensors(tiny_config()))
