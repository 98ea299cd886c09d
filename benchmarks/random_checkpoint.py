"""Writes a checkpoint of random bfloat16 weights as fast as a disk takes it: what `loading.py` reads."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path

import numpy as np
import torch
from benchmarks.model_shapes import Shape, config_of

from palmette.runtime.layers.placement import Placement
from palmette.runtime.models import ModelConfig, model_factory

BLOCK_BYTES = 64 << 20
SHARD_BYTES = 2_000_000_000
_CHUNK_BYTES = 16 << 20
_STRIDE = 1_048_583  # a prime number of values between the beginnings of two tensors in the block


def write_checkpoint(folder: Path, shape: Shape, *, writers: int, shard_bytes: int = SHARD_BYTES) -> list[Path]:
    """Write config.json, an index and shards of at most `shard_bytes`; returns the shards.

    Every tensor is a run of one block of random normal numbers, repeated; where it begins differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(shape)))
    shards = _shards(_tensor_shapes(folder), shard_bytes)
    paths = [folder / f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    files = [path.name for path in paths]
    weight_map = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    block = _random_block()
    with ThreadPoolExecutor(writers) as pool:  # a file each: the system lets only one write to a file at a time
        list(pool.map(lambda path, shard: _write_file(path, shard, block), paths, shards))
    return paths


def _tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    config = ModelConfig.from_folder(folder)
    model = model_factory(config.architecture)(config, Placement(dtype=torch.bfloat16, device=torch.device("meta")))
    return {name: slot.shape for name, slot in model.slots().items()}


def _shards(shapes: dict[str, tuple[int, ...]], shard_bytes: int) -> list[dict[str, tuple[int, ...]]]:
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    size = 0
    for name, shape in shapes.items():
        size += 2 * math.prod(shape)
        if size > shard_bytes and shards[-1]:
            shards.append({})
            size = 2 * math.prod(shape)
        shards[-1][name] = shape
    return shards


def _random_block() -> memoryview:
    """Two copies of one block, so that from every value in the first one on there is a whole block."""
    values = torch.randn(BLOCK_BYTES // 2, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()
    block = values.view(torch.int16).numpy()
    return memoryview(np.concatenate([block, block]).view(np.uint8).data)


def _write_file(path: Path, shard: dict[str, tuple[int, ...]], block: memoryview) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shard.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb", buffering=0) as file:
        _write(file, memoryview(len(encoded).to_bytes(8, "little") + encoded))
        for index, shape in enumerate(shard.values()):
            size, first = 2 * math.prod(shape), index * _STRIDE * 2
            for done in range(0, size, _CHUNK_BYTES):
                start = (first + done) % BLOCK_BYTES
                _write(file, block[start : start + min(_CHUNK_BYTES, size - done)])


def _write(file: FileIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]
