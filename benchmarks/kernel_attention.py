"""Times of attention at the heads of Llama-3.1-8B: each backend's decode, recorded as in the engine, and its prefills.

    python benchmarks/kernels.py --only attention

`python -m benchmarks.kernel_attention` tries every tile instead, and prints the quickest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from unittest.mock import patch

import numpy as np
import torch
from tests.tiny_models import tiny_config
from torch import Tensor

from palmette.runtime.attention import AttentionPlan, PlannedAttention, attention_backend
from palmette.runtime.attention import triton as triton_backend
from palmette.runtime.attention.triton import TritonAttention
from palmette.runtime.kernels import decode_attention as decode
from palmette.runtime.kernels import prefill_attention as prefill
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.placement import Alone, Placement
from palmette.runtime.models import ModelConfig

from .kernel_timing import Ceilings, Measured, graph_seconds

_HEADS, _KV_HEADS, _HEAD_DIM, _PAGE = 32, 8, 128, 16
_BYTES = 2
"""Of a bfloat16 number."""
_LAYERS = 4
"""Whose keys and values take turns, so that none waits in the L2 cache."""

DECODES = ((1, 768), (1, 8192), (64, 700), (256, 700), (512, 1150))
"""Rows, and tokens of context of each."""

PREFILLS = ((8, 0, 1024), (1, 0, 8192), (64, 2048, 64), (1, 2048, 64))
"""Rows, tokens in the pages already, and tokens of the step."""


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of one step, all alike."""

    rows: int
    before: int
    now: int

    @property
    def seq_len(self) -> int:
        return self.before + self.now

    @property
    def shape(self) -> str:
        if self.now == 1:
            return f"decode {self.rows} x {self.seq_len}"
        return f"prefill {self.rows} x {self.now} over {self.seq_len}"

    @property
    def bytes_moved(self) -> float:
        """Keys and values read, the step's own written; queries, read twice, and outputs."""
        own = self.rows * self.now * _HEAD_DIM * (4 * _HEADS + 4 * _KV_HEADS)
        return float(_BYTES * (2 * self.rows * self.seq_len * _KV_HEADS * _HEAD_DIM + own))

    @property
    def flops(self) -> float:
        """Of the matrix units, where a query sees what is before it."""
        pairs = self.rows * (self.now * self.before + self.now * (self.now + 1) / 2)
        return 4.0 * pairs * _HEADS * _HEAD_DIM

    def plan(self) -> AttentionPlan:
        pages = -(-self.seq_len // _PAGE)
        order = np.random.default_rng(0).permutation(self.rows * pages).astype(np.int32).reshape(self.rows, pages)
        position = np.arange(self.before, self.seq_len)
        return AttentionPlan(
            kv_slots=(order[:, position // _PAGE] * _PAGE + position % _PAGE).reshape(-1).astype(np.int32),
            query_indptr=np.arange(self.rows + 1, dtype=np.int32) * self.now,
            page_indptr=np.arange(self.rows + 1, dtype=np.int32) * pages,
            page_ids=order.reshape(-1),
            seq_lens=np.full(self.rows, self.seq_len, dtype=np.int32),
            num_decodes=self.rows if self.now == 1 else 0,
        )


def cases() -> Iterator[Case]:
    for rows, length in DECODES:
        yield Case(rows, length - 1, 1)
    for rows, before, now in PREFILLS:
        yield Case(rows, before, now)


def storage_of(case: Case) -> KVStorage:
    """Random keys and values of a few layers."""
    heads = {"num_attention_heads": _HEADS, "num_key_value_heads": _KV_HEADS, "head_dim": _HEAD_DIM}
    config = ModelConfig.from_dict(tiny_config(num_hidden_layers=_LAYERS, **heads), source="benchmark")
    placement = Placement(0, 1, Alone(), torch.bfloat16, torch.device("cuda"))
    pages = case.rows * -(-case.seq_len // _PAGE)
    storage = KVStorage(config, placement, num_pages=pages, page_size=_PAGE)
    for tensor in (*storage.keys, *storage.values):
        tensor.normal_()
    return storage


def layers() -> list[RadixAttention]:
    return [RadixAttention(i, num_heads=_HEADS, num_kv_heads=_KV_HEADS, head_dim=_HEAD_DIM) for i in range(_LAYERS)]


def seconds(name: str, case: Case, storage: KVStorage) -> float:
    """Of one layer, the write of keys and values included."""
    backend = attention_backend(name, storage)
    attention = backend.decode_graph(case.rows, 8192) if case.now == 1 else backend
    assert attention is not None
    return planned_seconds(attention, case)


def planned_seconds(backend: PlannedAttention, case: Case) -> float:
    qkv = torch.randn(case.rows * case.now, _HEADS + 2 * _KV_HEADS, _HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    backend.plan(case.plan())
    made = layers()

    def call(i: int) -> Tensor:
        return backend.run(qkv, made[i % _LAYERS])

    return graph_seconds(call, launches=2 * _LAYERS)


def measure(_: Ceilings) -> Iterator[Measured]:
    """Palmette's kernels, with FlashInfer as a peer where it is installed."""
    for case in cases():
        storage = storage_of(case)
        peers = {}
        try:
            peers["flashinfer"] = seconds("flashinfer", case, storage)
        except Exception as error:  # whatever keeps it from running: its figure is missing, the others are not
            print(f"flashinfer, {case.shape}: {error}")
        ours = seconds("triton", case, storage)
        yield Measured("attention", case.shape, ours, case.bytes_moved, case.flops, peers)


def tune() -> None:
    """Print every tile for every case: which should `decode_tile` and `prefill_tile` choose?"""
    for case in cases():
        storage = storage_of(case)
        found = sorted(_tuned(case, storage))
        print(
            case.shape,
            *(f"{1e6 * s:.0f}us {tile}" for s, tile in found[:5]),
            f"... {1e6 * found[-1][0]:.0f}us",
            sep="\n  ",
        )


def _tuned(case: Case, storage: KVStorage) -> Iterator[tuple[float, str]]:
    if case.now == 1:
        for block_n, warps, stages, programs in product((32, 64, 128), (4, 8), (2, 3, 4), (2, 4, 8)):
            if stages == 3 or programs == 4:
                tile = decode.DecodeTile(block_n, warps, stages)
                with (
                    patch.object(decode, "decode_tile", lambda *_, tile=tile: tile),
                    patch.object(decode, "_PROGRAMS_PER_SM", programs),
                ):
                    yield seconds("triton", case, storage), f"{tile} programs={programs}"
        return
    for (block_m, warps), block_n, stages in product(((64, 4), (128, 8)), (32, 64, 128), (2, 3, 4)):
        chosen = prefill.PrefillTile(block_m, block_n, warps, stages)
        with patch.object(triton_backend, "prefill_tile", lambda *_, chosen=chosen: chosen):
            try:
                yield planned_seconds(TritonAttention(storage), case), str(chosen)
            except Exception as error:  # more shared memory than there is
                print(chosen, type(error).__name__)


if __name__ == "__main__":
    tune()
