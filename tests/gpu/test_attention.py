"""The GPU's attention backends at shapes of real models, in half precision, against float32 written out.

Slots that no row wrote hold NaN. The relative error is that of bfloat16 operands: below 1e-2 of the output's norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.tiny_models import tiny_config
from torch import Tensor

from palmette.runtime.attention import AttentionBackend, AttentionPlan, CompiledAttention, attention_backend
from palmette.runtime.attention.flashinfer import prefers_fa3
from palmette.runtime.attention.flashinfer_kernels import missing
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.placement import Alone, Placement
from palmette.runtime.models import ModelConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

BACKENDS = ("flashinfer", "triton")
MIXED = [(700, 1), (0, 1), (4095, 1), (15, 1), (0, 1024), (2048, 64), (16, 1), (100, 17)]


@dataclass(frozen=True)
class Shape:
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 16
    window: int | None = None
    softcap: float | None = None
    dtype: torch.dtype = torch.bfloat16

    @property
    def layer(self) -> RadixAttention:
        return RadixAttention(
            1,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            sliding_window=self.window,
            softcap=self.softcap,
        )


@dataclass(frozen=True)
class Step:
    """Rows of one step: what goes to the backend, and what it should make of it."""

    plan: AttentionPlan
    qkv: Tensor
    expected: Tensor


def storage_of(shape: Shape, num_pages: int) -> KVStorage:
    """All NaN."""
    config = ModelConfig.from_dict(
        tiny_config(
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            num_hidden_layers=2,
        ),
        source="test",
    )
    placement = Placement(0, 1, Alone(), shape.dtype, torch.device("cuda"))
    storage = KVStorage(config, placement, num_pages=num_pages, page_size=shape.page_size)
    for tensor in (*storage.keys, *storage.values):
        tensor.fill_(torch.nan)
    return storage


def attend(q: Tensor, k: Tensor, v: Tensor, shape: Shape) -> Tensor:
    """q [Q, heads, d], the last of the N tokens of k and v [N, kv_heads, d], in float32."""
    group = shape.heads // shape.kv_heads
    keys, values = (x.float().repeat_interleave(group, dim=1).transpose(0, 1) for x in (k, v))
    scores = q.float().transpose(0, 1) @ keys.transpose(1, 2) * shape.head_dim**-0.5
    if shape.softcap is not None:
        scores = shape.softcap * (scores / shape.softcap).tanh()
    key = torch.arange(len(k), device=q.device)
    query = torch.arange(len(k) - len(q), len(k), device=q.device)[:, None]
    seen = key <= query
    if shape.window is not None:
        seen &= key > query - shape.window
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.matmul(weights, values).transpose(0, 1)


def step_of(rows: list[tuple[int, int]], shape: Shape, storage: KVStorage, seed: int = 0) -> Step:
    """Random rows (before, now), on random pages; what came before is written."""
    order = np.random.default_rng(seed).permutation(storage.num_pages).astype(np.int32)
    seq_lens = np.array([sum(row) for row in rows], dtype=np.int32)
    page_indptr = np.cumsum([0, *(-(-seq_lens // shape.page_size)).tolist()]).astype(np.int32)
    generator = torch.Generator("cuda").manual_seed(seed)
    slots, qkvs, expected = [], [], []
    for (first, stop), (before, now) in zip(pairwise(page_indptr.tolist()), rows, strict=True):
        mine = (order[first:stop, None].astype(np.int64) * shape.page_size + np.arange(shape.page_size)).reshape(-1)
        total = before + now
        k, v = (
            torch.randn(total, shape.kv_heads, shape.head_dim, generator=generator, device="cuda").to(shape.dtype)
            for _ in range(2)
        )
        q = torch.randn(now, shape.heads, shape.head_dim, generator=generator, device="cuda").to(shape.dtype)
        storage.write(1, torch.from_numpy(mine[:before]).cuda(), k[:before], v[:before])
        slots.append(mine[before:total])
        qkvs.append(torch.cat((q, k[before:], v[before:]), dim=1))
        expected.append(attend(q, k, v, shape))
    counts = [now for _, now in rows]
    plan = AttentionPlan(
        kv_slots=np.concatenate(slots).astype(np.int32),
        query_indptr=np.cumsum([0, *counts]).astype(np.int32),
        page_indptr=page_indptr,
        page_ids=order[: page_indptr[-1]],
        seq_lens=seq_lens,
        num_decodes=next((i for i, count in enumerate(counts) if count != 1), len(counts)),
    )
    return Step(plan, torch.cat(qkvs), torch.cat(expected))


def assert_close(out: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """By norm, over all and in the worst head of a token; NaN never passes."""
    error = (out.float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    most = 1e-4 if dtype == torch.float32 else 1e-2
    assert (out.float() - expected).norm() / expected.norm() < most
    assert (error < 6 * most).all(), f"token, head {(error >= 6 * most).nonzero()[:4].tolist()} are off"


def backend_of(name: str, storage: KVStorage) -> AttentionBackend:
    keys = storage.keys[0]
    reason = missing(storage.device, keys.dtype, keys.shape[-1]) if name == "flashinfer" else None
    if reason is not None:
        pytest.skip(reason)
    return attention_backend(name, storage)


def check(name: str, rows: list[tuple[int, int]], shape: Shape, *, num_pages: int | None = None) -> None:
    pages = sum(-(-sum(row) // shape.page_size) for row in rows)
    storage = storage_of(shape, num_pages or pages + 3)
    step = step_of(rows, shape, storage)
    backend = backend_of(name, storage)
    backend.plan(step.plan)
    assert_close(backend.run(step.qkv, shape.layer), step.expected, shape.dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        Shape(dtype=torch.float16, head_dim=64, heads=14, kv_heads=2),
        Shape(head_dim=256, heads=8, kv_heads=4, window=512, softcap=50.0),
        Shape(window=128),
        Shape(heads=8, kv_heads=8, page_size=1),
    ],
    ids=str,
)
def test_mixed_steps(backend: str, shape: Shape) -> None:
    """Decodes of all lengths, whole prompts, chunks after a prefix, and a late row of one token."""
    check(backend, MIXED, shape)


@pytest.mark.parametrize("shape", [Shape(dtype=torch.float32), Shape(dtype=torch.float32, head_dim=80, page_size=3)])
def test_triton_in_float32(shape: Shape) -> None:
    """Nearly exact, and heads that are no power of two."""
    check("triton", [(300, 1), (16, 1), (0, 130), (50, 20)], shape)


def test_more_blocks_than_one_dimension_of_a_grid_has() -> None:
    """Of CUDA's three, only the first goes beyond 65535: 1700 rows of ten tokens, with 64 heads on one of keys."""
    check("triton", [(0, 10)] * 1700, Shape(heads=64, kv_heads=1, head_dim=16, dtype=torch.float32))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [[(8191, 1)], [(0, 8192)], [(700 + i, 1) for i in range(256)], [(64, 128)] * 40])
def test_steps_of_one_kind(backend: str, rows: list[tuple[int, int]]) -> None:
    """A long context at batch 1, a long prompt, many decodes, and rows that FlashAttention 3 takes."""
    check(backend, rows, Shape())


@pytest.mark.parametrize("shape", [Shape(heads=28, kv_heads=4), Shape(heads=24, window=500, page_size=1)], ids=str)
def test_flash_attention_3_with_groups_of_any_size(shape: Shape) -> None:
    """Seven and three heads of queries on one of keys, after a decode."""
    rows = [(20, 1), (0, 1024), (300, 384)]
    lens, contexts = (np.array(numbers, dtype=np.int32) for numbers in ([1024, 384], [1024, 684]))
    assert prefers_fa3(lens, contexts, shape.head_dim)
    check("flashinfer", rows, shape)


@pytest.mark.parametrize("backend", [*BACKENDS, "torch_native"])
def test_pools_of_more_elements_than_32_bits_count(backend: str) -> None:
    """Pages on both sides of 2 ** 31 elements of a layer's keys: decodes, a whole prompt, a chunk after a prefix."""
    shape = Shape(heads=8)
    pages = (1 << 31) // (shape.page_size * shape.kv_heads * shape.head_dim)
    check(backend, [(700, 1), (4095, 1), (0, 1024), (2048, 64)], shape, num_pages=pages * 5 // 4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "shape",
    [Shape(), Shape(window=300), Shape(heads=28, kv_heads=4), Shape(heads=64, kv_heads=2, page_size=1)],
    ids=str,
)
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_a_recorded_step_serves_rows_of_any_length(backend: str, rows: int, shape: Shape) -> None:
    """One recording, replayed after plans of other lengths; the steps follow one another without a wait."""
    storage = storage_of(shape, rows * -(-2048 // shape.page_size) + 3)
    graph_backend = backend_of(backend, storage).decode_graph(rows, 2048)
    assert graph_backend is not None
    random = np.random.default_rng(rows)
    lengths = [random.integers(0, most, rows).tolist() for most in (40, 900, 2047, 900)]
    qkv = torch.empty(rows, shape.heads + 2 * shape.kv_heads, shape.head_dim, dtype=shape.dtype, device="cuda")
    graph: torch.cuda.CUDAGraph | None = None
    out = torch.empty(0)
    results = []
    for seed, befores in enumerate(lengths):
        step = step_of([(before, 1) for before in befores], shape, storage, seed)
        graph_backend.plan(step.plan)
        qkv.copy_(step.qkv)
        if graph is None:
            graph_backend.run(qkv, shape.layer)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = graph_backend.run(qkv, shape.layer)
        graph.replay()
        results.append((out.clone(), step.expected))
        out.fill_(torch.nan)
    for found, expected in results:
        assert_close(found, expected, shape.dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_warming_up_leaves_little_for_the_first_step(backend: str) -> None:
    """It runs for layers with and without a window."""
    storage = storage_of(Shape(), 4)
    made = backend_of(backend, storage)
    assert isinstance(made, CompiledAttention)
    made.warm_up([Shape().layer, Shape(window=64).layer])
    assert storage.keys[0][: 4 * 16].isnan().all()


def test_the_default_is_flashinfer_where_it_can_serve() -> None:
    """Else Palmette's own kernels."""
    for shape in (Shape(), Shape(head_dim=80), Shape(dtype=torch.float32)):
        storage = storage_of(shape, 1)
        able = missing(storage.device, shape.dtype, shape.head_dim) is None
        expected = "FlashInferAttention" if able else "TritonAttention"
        assert type(attention_backend(None, storage)).__name__ == expected
