"""Model folders, whole and broken: what loads, and what the user is told where it does not."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.tiny_models import random_tensors, tiny_config, write_tiny_model, write_weights

from palmette.runtime import weights
from palmette.runtime.config import LoadFormat
from palmette.runtime.errors import ModelLoadError
from palmette.runtime.layers.placement import Placement, TensorSlot
from palmette.runtime.model_path import find_model
from palmette.runtime.safetensors_files import SafetensorsFile
from palmette.runtime.weights import load_config, load_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model")


def loaded(folder: Path, placement: Placement | None = None) -> dict[str, torch.Tensor]:
    """Every tensor of the loaded model, by its name in the checkpoint."""
    return {name: slot.target for name, slot in load_model(folder, placement or Placement()).slots().items()}


@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_arrives(tmp_path: Path, shards: int) -> None:
    """One file or several, fused in the model or not: bit for bit."""
    folder = write_tiny_model(tmp_path, shards=shards)
    tensors = random_tensors(tiny_config())
    for name, target in loaded(folder).items():
        assert torch.equal(target, tensors[name]), name


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_converted(tmp_path: Path, stored: torch.dtype) -> None:
    """A bfloat16 checkpoint runs in float32, and the other way round."""
    folder = write_tiny_model(tmp_path)
    tensors = {name: tensor.to(stored) for name, tensor in random_tensors(tiny_config()).items()}
    write_weights(folder, tensors)
    for name, target in loaded(folder).items():
        assert torch.equal(target, tensors[name].float()), name
    for name, target in loaded(folder, Placement(dtype=torch.bfloat16)).items():
        assert torch.equal(target, tensors[name].bfloat16()), name


def test_tied_heads_and_stale_buffers_may_be_stored_all_the_same(tmp_path: Path) -> None:
    """A copy of the tied head and old rotary buffers are left aside."""
    config = tiny_config(tie_word_embeddings=True)
    folder = write_tiny_model(tmp_path, config)
    tensors = random_tensors(config)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    write_weights(folder, tensors)
    assert "lm_head.weight" not in loaded(folder)


def test_random_weights_need_a_config_only(tmp_path: Path) -> None:
    """load_format "dummy" is repeatable and depends on the seed."""
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()))
    models = [load_model(tmp_path, Placement(), load_format="dummy", seed=seed).slots() for seed in (1, 1, 2)]
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(models[0][name].target, models[1][name].target)
    assert not torch.equal(models[0][name].target, models[2][name].target)
    assert torch.equal(models[0]["model.norm.weight"].target, torch.ones(48))


def cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def without_tensor(folder: Path) -> None:
    tensors = random_tensors(tiny_config())
    del tensors["model.layers.1.mlp.up_proj.weight"]
    write_weights(folder, tensors)


def with_extra_tensor(folder: Path) -> None:
    write_weights(folder, random_tensors(tiny_config()) | {"model.vision.weight": torch.ones(1)})


def with_wrong_shape(folder: Path) -> None:
    write_weights(folder, random_tensors(tiny_config()) | {"model.norm.weight": torch.ones(49)})


def with_integers(folder: Path) -> None:
    write_weights(folder, random_tensors(tiny_config()) | {"model.norm.weight": torch.ones(48, dtype=torch.int8)})


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def with_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def with_listed_config(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def with_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def with_rubbish(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0this is not json")


def with_two_files(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"b": torch.ones(1)}, folder / "b.safetensors")


def without_a_shard(folder: Path) -> None:
    write_weights(folder, random_tensors(tiny_config()), shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()


def with_wrong_index(folder: Path) -> None:
    write_weights(folder, random_tensors(tiny_config()), shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.norm.weight"] = "model-00001-of-00002.safetensors"
    index["weight_map"]["model.embed_tokens.weight"] = "model-00002-of-00002.safetensors"
    path.write_text(json.dumps(index))


def with_outside_shard(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))


def with_a_name_too_long(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "a" * 300}}))


def with_empty_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_off, r"model\.safetensors is cut off: tensor '.*' ends \d+ bytes past the end"),
        (without_tensor, r"lacks tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"),
        (with_extra_tensor, r"holds tensor 'model\.vision\.weight', which a LlamaForCausalLM"),
        (with_wrong_shape, r"model\.safetensors: tensor 'model\.norm\.weight' has shape \(49,\).* \(48,\)"),
        (with_integers, r"tensor 'model\.norm\.weight' is I8; supported: F64, F32, F16, BF16"),
        (without_config, r"has no config\.json"),
        (with_broken_config, r"config\.json cannot be read as JSON"),
        (with_listed_config, r"must hold a JSON object, not list"),
        (without_weights, r"has no weights"),
        (with_pickle, r"pytorch_model\.bin, a pickle"),
        (with_rubbish, r"model\.safetensors is not a safetensors file"),
        (with_two_files, r"several safetensors files \(a\.safetensors, b\.safetensors\)"),
        (without_a_shard, r"names model-00002-of-00003\.safetensors, which is not there"),
        (with_wrong_index, r"model-0000\d-of-00002\.safetensors lacks tensor '.*', which .*index\.json says"),
        (with_outside_shard, r"shards must lie beside the index"),
        (with_a_name_too_long, r"names a+, which is not there"),
        (with_empty_index, r"no weight_map"),
    ],
)
def test_damage_is_named(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    """The error names the file and the tensor."""
    damage(folder)
    with pytest.raises(ModelLoadError, match=message):
        load_model(folder, Placement())


def test_many_missing_tensors_are_counted(tmp_path: Path) -> None:
    """A message stays readable when everything is missing."""
    folder = write_tiny_model(tmp_path)
    write_weights(folder, {"x": torch.ones(1)})
    with pytest.raises(ModelLoadError, match=r"and \d+ more$"):
        load_model(folder, Placement())


FLOATS = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize("header", [[], "[" * 100_000, "nothing", 3])
def test_a_header_that_is_no_object_is_damage(tmp_path: Path, header: object) -> None:
    """Whatever it is instead, however deep."""
    encoded = (header if isinstance(header, str) else json.dumps(header).ljust(8)).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded)
    with pytest.raises(ModelLoadError, match=r"x\.safetensors is not a safetensors file: its header"):
        SafetensorsFile(path)


@pytest.mark.parametrize(
    "header",
    [
        {"t": {}},
        {"t": FLOATS | {"data_offsets": [0, 4]}},
        {"t": FLOATS | {"data_offsets": [-8, 0]}},
        {"t": FLOATS | {"data_offsets": ["0", "8"]}},
        {"t": FLOATS | {"data_offsets": [0.0, 8.0]}},
        {"t": FLOATS | {"dtype": ["F32"]}},
        {"t": FLOATS | {"shape": [2.0]}},
    ],
)
def test_headers_that_contradict_themselves_are_damage(tmp_path: Path, header: dict[str, object]) -> None:
    """An entry without fields, or with bytes that are not those of its shape."""
    encoded = json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"\0" * 8)
    with pytest.raises(ModelLoadError, match="tensor 't'"):
        SafetensorsFile(path).read_into("t", TensorSlot((2,), torch.empty(2)))


def test_a_file_is_pointed_to_its_folder(tmp_path: Path) -> None:
    """Weights alone are no model."""
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ModelLoadError, match="is a file: give the folder"):
        find_model(file)


def test_a_folder_is_its_own_path(folder: Path) -> None:
    """What is there is used as it is."""
    assert find_model(str(folder)) == folder
    assert load_config(folder).num_layers == 3


def test_no_memory_while_weights_are_read_is_a_loading_error(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the weights are a checkpoint's or random, the message names the folder and the device."""

    def out_of_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    monkeypatch.setattr(weights, "fill", out_of_memory)
    monkeypatch.setattr(weights, "fill_randomly", out_of_memory)
    for load_format in typing.get_args(LoadFormat):
        with pytest.raises(ModelLoadError, match=r"cpu has no memory to load the model: tried to allocate 9 GiB"):
            load_model(tiny_model_folder, Placement(), load_format=load_format)
