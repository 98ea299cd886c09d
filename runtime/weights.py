"""Fills models from what users name: a folder of safetensors, a GGUF file, or random numbers in the shape of either.

Tensors are read straight into the place where the model keeps them, so that loading takes the memory of one copy: one
at a time on the CPU, many at once on a GPU (tensor_reader.py).
"""

from __future__ import annotations

import logging
import math
import os
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from .config import LoadFormat, ModelImpl
from .errors import ModelLoadError
from .gguf_reader import GGUFFile
from .layers.placement import Placement, Slots, TensorSlot
from .models import CausalLM, ModelConfig, UnsupportedModelError, model_factory
from .models.config import read_json_object
from .safetensors_files import SafetensorsFile
from .tensor_reader import PIECE_BYTES, READERS, read_tensors

logger = logging.getLogger("palmette.engine")

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_MOST_NAMES = 5


class TensorSource(Protocol):
    """A checkpoint."""

    path: Path

    def names(self) -> Collection[str]:
        """Names of its tensors."""

    def read_into(self, name: str, slot: TensorSlot) -> None:
        """Fill a slot from the tensor `name`, one of `names()`."""


class Checkpoint(Protocol):
    """A model on disk: what it is was read, its weights were not yet."""

    @property
    def dtype(self) -> str:
        """Of its weights, as config.json names it."""

    def load(self, placement: Placement, *, load_format: LoadFormat = "auto", seed: int = 0) -> CausalLM:
        """Build the model and fill this rank's shard.

        Args:
            placement: dtype, device and shard.
            load_format: "dummy" needs no weights, only the config.
            seed: of the random weights of "dummy": the same on every rank and for every number of ranks.

        Raises:
            ModelLoadError: the message names the file, and the tensor.
        """


@dataclass(frozen=True, slots=True)
class NativeCheckpoint:
    """A checkpoint that runs in Palmette's own code. See `Checkpoint`.

    Attributes:
        gguf: the open file, where `path` is one.
    """

    path: Path
    config: ModelConfig
    gguf: GGUFFile | None = None

    @property
    def dtype(self) -> str:
        return self.config.dtype

    def load(self, placement: Placement, *, load_format: LoadFormat = "auto", seed: int = 0) -> CausalLM:
        # The weights are looked at before memory is taken for the model.
        source = None if load_format == "dummy" else self.gguf or SafetensorsFolder(self.path)
        model = self._empty(placement)
        try:
            if source is None:
                fill_randomly(model.slots(), seed=seed)
            else:
                fill(model, source)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise ModelLoadError(f"{self.path}: {placement.device} has no memory to load the model: {error}") from error
        return model

    def _empty(self, placement: Placement) -> CausalLM:
        try:
            return model_factory(self.config.architecture)(self.config, placement)
        except (RuntimeError, MemoryError) as error:  # torch's errors of memory
            raise ModelLoadError(f"{self.path}: {placement.device} has no memory for the model: {error}") from error


def open_checkpoint(path: Path, model_impl: ModelImpl = "auto") -> Checkpoint:
    """Look at a folder or GGUF file.

    Args:
        model_impl: whose code is to run it; "auto" is Palmette's, and transformers' where Palmette has none.

    Raises:
        ModelLoadError: it cannot be read or is not supported.
    """
    if path.suffix == ".gguf" and path.is_file():
        if model_impl == "transformers":
            raise ModelLoadError(f"{path}: model_impl='transformers' needs a folder of safetensors, not a .gguf file")
        gguf = GGUFFile(path)
        return NativeCheckpoint(path, gguf.config(), gguf)
    if model_impl != "transformers":
        try:
            return NativeCheckpoint(path, ModelConfig.from_folder(path))
        except UnsupportedModelError as error:
            if model_impl == "native":
                raise
            logger.info("%s; transformers' code is tried", error)
    from .models.transformers_checkpoint import TransformersCheckpoint

    return TransformersCheckpoint(path)


def load_config(path: Path) -> ModelConfig:
    """The shape of the model in a folder or GGUF file, where Palmette has code of its own for it.

    Raises:
        UnsupportedModelError: it has none.
        ModelLoadError: the model cannot be read.
    """
    if path.suffix == ".gguf" and path.is_file():
        return GGUFFile(path).config()
    return ModelConfig.from_folder(path)


def load_model(
    path: Path,
    placement: Placement,
    *,
    load_format: LoadFormat = "auto",
    seed: int = 0,
    model_impl: ModelImpl = "auto",
) -> CausalLM:
    """Build the model in a folder or GGUF file, and fill this rank's shard; see `open_checkpoint` and `Checkpoint`.

    Raises:
        ModelLoadError: the message names the file, and the tensor.
    """
    return open_checkpoint(path, model_impl).load(placement, load_format=load_format, seed=seed)


def fill(model: CausalLM, source: TensorSource) -> None:
    """Read every tensor of the model.

    Raises:
        ModelLoadError: a tensor is missing, unknown, of another shape, or cannot be read.
    """
    slots = model.slots()
    names = set(source.names())
    if missing := [name for name in slots if name not in names]:
        raise ModelLoadError(f"{source.path} lacks {_listed(missing)}")
    if unknown := [name for name in sorted(names) if name not in slots and not model.ignores(name)]:
        raise ModelLoadError(
            f"{source.path} holds {_listed(unknown)}, which a {model.config.architecture} of its config.json has no "
            "place for"
        )
    if isinstance(source, SafetensorsFolder) and model.placement.device.type == "cuda":
        source.read_all(slots, model.placement.device)
        return
    for name, slot in slots.items():
        source.read_into(name, slot)


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{'tensor' if len(names) == 1 else 'tensors'} {shown}{more}"


def fill_randomly(slots: Slots, *, seed: int) -> None:
    """Normal random matrices that keep the size of what passes through, ones for norms, zeros for biases.

    Each tensor has its own stream, keyed by its name: any sharding of the model gives the same model. The numbers of
    whole tensors are drawn in memory for the largest, which is given back.
    """
    device = next(iter(slots.values())).target.device
    drawn = torch.empty(max(math.prod(slot.shape) for slot in slots.values()), device=device)
    for name, slot in slots.items():
        if len(slot.shape) == 1:
            slot.target.fill_(0 if name.endswith(".bias") else 1)
            continue
        stream = zlib.crc32(f"{seed} {name}".encode())  # the CPU's generator looks at 32 bits only
        generator = torch.Generator(device).manual_seed(stream)
        whole = drawn[: math.prod(slot.shape)].view(slot.shape)
        slot.fill(whole.normal_(generator=generator).div_(math.sqrt(slot.shape[1])))
    del drawn
    if device.type == "cuda":
        torch.cuda.empty_cache()


class SafetensorsFolder:
    """The checkpoint in a folder: model.safetensors, or several files with an index.

    Raises:
        ModelLoadError: there is none, a file of the index is missing, or there are only pickles.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, SafetensorsFile] = {}
        index = path / "model.safetensors.index.json"
        if index.is_file():
            self._open_index(index)
        else:
            file = SafetensorsFile(_single_file(path))
            self._files = dict.fromkeys(file.names(), file)

    def names(self) -> Collection[str]:
        return self._files

    def read_into(self, name: str, slot: TensorSlot) -> None:
        self._files[name].read_into(name, slot)

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._files[name].path

    def read_all(
        self, slots: Slots, device: torch.device, *, readers: int = READERS, piece_bytes: int = PIECE_BYTES
    ) -> None:
        """Fill slots whose targets are on `device` from the tensors of their names, many at once; see `read_tensors`.

        Raises:
            ModelLoadError: as `read_into`, before anything is read wherever the headers tell.
        """
        wanted = [(self._files[name].stored(name, slot), slot) for name, slot in slots.items()]
        read_tensors(wanted, device, readers=readers, piece_bytes=piece_bytes)

    def check_weights(self) -> None:
        """Look at every tensor called weight without reading it; masks and other buffers may be of any dtype.

        Raises:
            ModelLoadError: one is not of a float dtype, or its file is cut off.
        """
        for name, file in self._files.items():
            if name.endswith("weight"):
                file.check(name)

    def _open_index(self, index: Path) -> None:
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise ModelLoadError(f"{index} has no weight_map of tensor names to file names")
        opened = {name: self._open_shard(index, name) for name in sorted(set(weight_map.values()))}
        for tensor, name in weight_map.items():
            if tensor not in opened[name].names():
                raise ModelLoadError(f"{index.parent / name} lacks tensor {tensor!r}, which {index.name} says it holds")
            self._files[tensor] = opened[name]

    def _open_shard(self, index: Path, name: str) -> SafetensorsFile:
        path = index.parent / name
        if path.parent != index.parent:
            raise ModelLoadError(f"{index} names {name!r}: shards must lie beside the index")
        if not os.path.isfile(path):  # False for names too long for a file
            raise ModelLoadError(f"{index} names {name}, which is not there: was the download cut off?")
        return SafetensorsFile(path)


def _single_file(folder: Path) -> Path:
    path = folder / "model.safetensors"
    if path.is_file():
        return path
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(file.name for file in found[:_MOST_NAMES])
        raise ModelLoadError(f"{folder} holds several safetensors files ({names}) and no model.safetensors.index.json")
    if pickles := sorted(file.name for file in folder.glob("*") if file.suffix in _PICKLES):
        raise ModelLoadError(
            f"{folder} holds {pickles[0]}, a pickle, which can run any code when it is loaded, and no safetensors: "
            "convert it with transformers' `save_pretrained`"
        )
    raise ModelLoadError(f"{folder} has no weights: no model.safetensors and no model.safetensors.index.json")
