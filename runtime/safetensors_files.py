"""Reads and writes .safetensors files one tensor at a time, straight into the memory where it is wanted.

Many tensors for a GPU are read by tensor_reader.py, which is told here where they lie.

The safetensors package maps the whole file, and mapped pages count as the process's memory: loading would need two
copies of the weights at its peak. Reading needs one, and can name the tensor that a damaged file breaks.

Source: the format's description in the safetensors package (8 bytes of header length, a JSON header, then the data).
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .errors import ModelLoadError
from .layers.placement import TensorSlot
from .tensor_reader import OpenFile, StoredTensor

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_MAX_HEADER_BYTES = 100_000_000


class SafetensorsFile:
    """The tensors of one file.

    Raises:
        ModelLoadError: the file cannot be opened or its header is not one of a safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._size = path.stat().st_size
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if not 2 <= length <= min(_MAX_HEADER_BYTES, self._size - 8):
                    raise ModelLoadError(f"{path} is not a safetensors file, or it is cut off")
                header = json.loads(file.read(length))
        except OSError as error:
            raise ModelLoadError(f"{path} cannot be read: {error}") from error
        except ModelLoadError:
            raise
        except (ValueError, RecursionError) as error:
            raise ModelLoadError(f"{path} is not a safetensors file: its header is not JSON ({error})") from error
        if not isinstance(header, dict):
            raise ModelLoadError(f"{path} is not a safetensors file: its header is not a JSON object")
        self._data = 8 + length
        self._entries: dict[str, Mapping[str, Any]] = {k: v for k, v in header.items() if k != "__metadata__"}

    def names(self) -> list[str]:
        """Names of the tensors, in the order of the header."""
        return list(self._entries)

    def read_into(self, name: str, slot: TensorSlot) -> None:
        """Fill a slot from the tensor `name`.

        Raises:
            ModelLoadError: its shape is not the slot's, its dtype is not a float one, or the file is cut off or cannot
                be read.
        """
        stored, target = self.stored(name, slot), slot.target.detach()
        is_run = slot.dim == 0 or target.shape == slot.shape  # rows are one run of bytes
        begin = stored.begin + (slot.start * stored.row_bytes if is_run else 0)
        if is_run and target.dtype == stored.dtype and target.device.type == "cpu" and target.is_contiguous():
            _read(stored, begin, target)
            return
        buffer = torch.empty(target.shape if is_run else stored.shape, dtype=stored.dtype)
        _read(stored, begin, buffer)
        target.copy_(buffer if is_run else buffer.narrow(slot.dim, slot.start, slot.length))

    def stored(self, name: str, slot: TensorSlot) -> StoredTensor:
        """Where the tensor `name` lies, which a slot is to be filled from.

        Raises:
            ModelLoadError: its shape is not the slot's, its dtype is not a float one, or the file is cut off.
        """
        stored = self._entry(name)
        if stored.shape != slot.shape:
            raise ModelLoadError(
                f"{self.path}: tensor {name!r} has shape {stored.shape}, config.json asks for {slot.shape}"
            )
        return stored

    def check(self, name: str) -> None:
        """Look at a tensor without reading it.

        Raises:
            ModelLoadError: its dtype is not a float one, or the file is cut off.
        """
        self._entry(name)

    def _entry(self, name: str) -> StoredTensor:
        try:
            entry = self._entries[name]
            kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        except (KeyError, TypeError, ValueError):
            raise self._damaged(name) from None
        if not isinstance(kind, str) or not all(type(each) is int and each >= 0 for each in (*shape, begin, end)):
            raise self._damaged(name)
        if kind not in _DTYPES:
            raise ModelLoadError(f"{self.path}: tensor {name!r} is {kind}; supported: {', '.join(_DTYPES)}")
        if end - begin != math.prod(shape) * _DTYPES[kind].itemsize:
            raise ModelLoadError(f"{self.path}: tensor {name!r} takes {end - begin} bytes, not those of its shape")
        if self._data + end > self._size:
            missing = self._data + end - self._size
            raise ModelLoadError(f"{self.path} is cut off: tensor {name!r} ends {missing} bytes past the end of file")
        return StoredTensor(self.path, name, _DTYPES[kind], shape, self._data + begin)

    def _damaged(self, name: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: the header's entry of tensor {name!r} is damaged")


def _read(stored: StoredTensor, begin: int, buffer: Tensor) -> None:
    with contextlib.closing(OpenFile()) as file:
        file.read(stored, begin, buffer.view(-1).view(torch.uint8))


def write_float32(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], npt.NDArray[np.float32]],
    progress: Callable[[int, int], None],
) -> None:
    """Write a file of float32 tensors, asking `read` for one after another so that only one is in memory.

    Args:
        progress: called with bytes written and bytes in all.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)  # the data begins at a multiple of 8 bytes
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in shapes:
            file.write(np.ascontiguousarray(read(name), dtype="<f4").data)
            progress(header[name]["data_offsets"][1], end)
