"""The attention backends against attention written out for one token and one head at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import tests.interpreted_kernels  # noqa: F401  # patches Triton's interpreter
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny_models import tiny_config
from torch import Tensor

from palmette.runtime.attention import (
    AttentionPlan,
    CompiledAttention,
    attention_backend,
    torch_native,
    triton,
)
from palmette.runtime.attention.flashinfer import FlashInferAttention
from palmette.runtime.attention.torch_native import TorchNativeAttention
from palmette.runtime.errors import RequestError
from palmette.runtime.kernels.prefill_attention import prefill_tile
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.placement import Placement
from palmette.runtime.models import ModelConfig


@dataclass(frozen=True)
class Case:
    """A step: (tokens already in the pages, tokens of the step) per row, and the shape of the layer."""

    rows: tuple[tuple[int, int], ...]
    page_size: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    softcap: float | None = None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kv_heads = draw(st.sampled_from([1, 2]))
    row = st.tuples(st.integers(0, 12), st.one_of(st.just(1), st.integers(1, 9)))
    return Case(
        rows=tuple(draw(st.lists(row, min_size=1, max_size=6))),
        page_size=draw(st.sampled_from([1, 3, 16])),
        heads=kv_heads * draw(st.sampled_from([1, 3])),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([2, 8])),
        window=draw(st.one_of(st.none(), st.integers(1, 20))),
        softcap=draw(st.sampled_from([None, 1.5])),
    )


def leading_decodes(counts: list[int]) -> int:
    """Rows of one token before the first of more."""
    return next((i for i, count in enumerate(counts) if count != 1), len(counts))


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None = None) -> Tensor:
    """q [Q, heads, d] are the last of the N tokens of k and v [N, kv_heads, d]."""
    out = torch.empty_like(q)
    group = q.shape[1] // k.shape[1]
    for i in range(len(q)):
        stop = len(k) - len(q) + i + 1
        start = 0 if window is None else max(0, stop - window)
        for head in range(q.shape[1]):
            scores = k[start:stop, head // group] @ q[i, head] * scale
            if softcap is not None:
                scores = softcap * (scores / softcap).tanh()
            out[i, head] = scores.softmax(0) @ v[start:stop, head // group]
    return out


def check(case: Case, *, scale: float | None = None, backend: str | None = None, recorded: bool = False) -> None:
    """The backend's output and what it stored equal the reference; slots never written hold NaN."""
    generator = torch.Generator().manual_seed(0)
    config = ModelConfig.from_dict(
        tiny_config(
            num_attention_heads=case.heads,
            num_key_value_heads=case.kv_heads,
            head_dim=case.head_dim,
            num_hidden_layers=2,
        ),
        source="test",
    )
    pages_per_row = -(-21 // case.page_size)
    storage = KVStorage(config, Placement(), num_pages=pages_per_row * 6, page_size=case.page_size)
    for tensor in (*storage.keys, *storage.values):
        tensor.fill_(torch.nan)
    layer = RadixAttention(
        1,
        num_heads=case.heads,
        num_kv_heads=case.kv_heads,
        head_dim=case.head_dim,
        sliding_window=case.window,
        scale=scale,
        softcap=case.softcap,
    )
    order = np.random.default_rng(0).permutation(storage.num_pages)
    keys, values, queries, pages, slots = [], [], [], [], []
    for r, (before, now) in enumerate(case.rows):
        total = before + now
        mine = order[r * pages_per_row :][: -(-total // case.page_size)]
        positions = np.arange(total)
        row_slots = mine[positions // case.page_size] * case.page_size + positions % case.page_size
        k, v = (torch.randn(total, case.kv_heads, case.head_dim, generator=generator) for _ in range(2))
        storage.write(1, torch.from_numpy(row_slots[:before]), k[:before], v[:before])
        keys.append(k)
        values.append(v)
        queries.append(torch.randn(now, case.heads, case.head_dim, generator=generator))
        pages.append(mine)
        slots.append(row_slots[before:])
    counts = [now for _, now in case.rows]
    plan = AttentionPlan(
        kv_slots=np.concatenate(slots).astype(np.int32),
        query_indptr=np.cumsum([0, *counts]).astype(np.int32),
        page_indptr=np.cumsum([0, *map(len, pages)]).astype(np.int32),
        page_ids=np.concatenate(pages).astype(np.int32),
        seq_lens=np.array([sum(row) for row in case.rows], dtype=np.int32),
        num_decodes=leading_decodes(counts),
    )
    every = FlashInferAttention(storage) if backend == "flashinfer" else attention_backend(backend, storage)
    attention = every.decode_graph(len(counts), 21) if recorded else every
    assert attention is not None
    attention.plan(plan)
    new_k, new_v = (
        torch.cat([x[before:] for x, (before, _) in zip(xs, case.rows, strict=True)]) for xs in (keys, values)
    )
    out = attention.run(torch.cat((torch.cat(queries), new_k, new_v), dim=1), layer)
    expected = [
        attend(q, k, v, layer.scale, case.window, case.softcap) for q, k, v in zip(queries, keys, values, strict=True)
    ]
    torch.testing.assert_close(out, torch.cat(expected), atol=1e-5, rtol=1e-5)
    assert torch.equal(storage.keys[1][torch.from_numpy(np.concatenate(slots))], new_k)


@given(case=cases(), backend=st.sampled_from(["torch_native", None]))
@settings(max_examples=60)
def test_any_step_equals_attention_written_out(case: Case, backend: str | None) -> None:
    """Prefill and decode rows, grouped heads, windows, soft caps, page sizes, and NaN in memory of others."""
    check(case, backend=backend)


@given(case=cases())
@settings(max_examples=25)
def test_any_step_of_the_triton_backend(case: Case) -> None:
    """The same, by its kernels in Triton's interpreter."""
    check(case, backend="triton")


@given(case=cases(), before=st.lists(st.integers(0, 20), min_size=1, max_size=6))
@settings(max_examples=10)
def test_recorded_steps_of_the_triton_backend(case: Case, before: list[int]) -> None:
    """A backend for a fixed number of decode rows reads everything from its one buffer."""
    check(replace(case, rows=tuple((count, 1) for count in before)), backend="triton", recorded=True)


def check_row_on_pages_of_another(backend: str | None) -> None:
    """Rows that go on from tokens which another row of the same step writes: one of one token, one of three."""
    generator = torch.Generator().manual_seed(0)
    shape = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": 1}
    config = ModelConfig.from_dict(tiny_config(**shape), source="test")
    storage = KVStorage(config, Placement(), num_pages=8, page_size=2)
    for tensor in (*storage.keys, *storage.values):
        tensor.fill_(torch.nan)
    layer = RadixAttention(0, num_heads=2, num_kv_heads=1, head_dim=8)
    q = torch.randn(9, 2, 8, generator=generator)
    k, v = (torch.randn(9, 1, 8, generator=generator) for _ in range(2))
    texts = [[1, 2, 3, 4, 0], [1, 2, 3, 4, 5], [1, 2, 6, 7, 8]]  # by token of the step; the second is the trunk
    pages = [[6, 3, 5], [6, 3, 1], [6, 0, 4]]
    slots = {token: pages[row][i // 2] * 2 + i % 2 for row, text in enumerate(texts) for i, token in enumerate(text)}
    plan = AttentionPlan(
        kv_slots=np.array([slots[token] for token in range(9)], dtype=np.int32),
        query_indptr=np.array([0, 1, 6, 9], dtype=np.int32),
        page_indptr=np.array([0, 3, 6, 9], dtype=np.int32),
        page_ids=np.array(pages, dtype=np.int32).ravel(),
        seq_lens=np.full(3, 5, dtype=np.int32),
        num_decodes=1,
    )
    attention = FlashInferAttention(storage) if backend == "flashinfer" else attention_backend(backend, storage)
    attention.plan(plan)
    out = attention.run(torch.cat((q, k, v), dim=1), layer)
    expected = [
        attend(q[text[-count:]], k[text], v[text], layer.scale, None)
        for text, count in zip(texts, [1, 5, 3], strict=True)
    ]
    torch.testing.assert_close(out, torch.cat(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["torch_native", "triton", None])
def test_a_row_may_have_pages_that_another_row_writes(backend: str | None) -> None:
    """All keys and values of a step are written before any attention is computed."""
    check_row_on_pages_of_another(backend)


@pytest.mark.parametrize("decodes", [0, 1, 3])
def test_triton_decodes_before_prefills(decodes: int) -> None:
    """Two launches share one step; groups of 4 need another work list than the first plan guessed."""
    check(Case(((4, 1),) * decodes + ((0, 9), (7, 5), (3, 1)), 16, 8, 2, 8, None), backend="triton")


def small_storage() -> KVStorage:
    """Of one head of 8 a layer, with zeros: what lies in fresh memory may overflow."""
    shape = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": 2}
    config = ModelConfig.from_dict(tiny_config(**shape), source="test")
    storage = KVStorage(config, Placement(), num_pages=2, page_size=16)
    for tensor in (*storage.keys, *storage.values):
        tensor.zero_()
    return storage


def test_warming_up_touches_the_spare_page_alone() -> None:
    """Every kernel is tried, and nobody's keys change."""
    storage = small_storage()
    for tensor in (*storage.keys, *storage.values):
        tensor.fill_(3.0)
    backend = attention_backend("triton", storage)
    assert isinstance(backend, CompiledAttention)
    backend.warm_up([RadixAttention(0, num_heads=1, num_kv_heads=1, head_dim=8, sliding_window=4)])
    assert all((tensor[:32] == 3.0).all() for tensor in (*storage.keys, *storage.values))
    assert not storage.keys[0][32:].any()


@pytest.mark.parametrize("heads", [1, 4, 6, 40])
def test_warming_up_leaves_no_kernel_to_a_request(monkeypatch: pytest.MonkeyPatch, heads: int) -> None:
    """Rows of all lengths in half precision, where blocks have several sizes, and a decode that is merged."""
    monkeypatch.setattr(triton, "prefill_tile", lambda dim, _, length: prefill_tile(dim, torch.bfloat16, length))
    tried: list[int] = []
    monkeypatch.setattr(triton, "prefill_attention", lambda *_, tile, **__: tried.append(tile.block_m))
    merged: list[bool] = []
    monkeypatch.setattr(triton, "decode_attention", lambda *_, merge, **__: merged.append(merge))
    backend = triton.TritonAttention(small_storage())
    backend.warm_up([RadixAttention(0, num_heads=heads, num_kv_heads=1, head_dim=8)])
    assert set(tried) == {prefill_tile(8, torch.bfloat16, tokens * heads).block_m for tokens in range(1, 200)}
    assert merged == [True]


def test_a_recorded_backend_keeps_its_addresses() -> None:
    """Plans of other lengths fill the same memory; a smaller backend shares it."""
    backend = attention_backend("triton", small_storage())
    recorded, smaller = backend.decode_graph(2, 32), backend.decode_graph(1, 32)
    assert recorded is not None
    assert smaller is not None
    seen = []
    for graph, lengths in ((recorded, [1, 20]), (recorded, [17, 3]), (smaller, [2])):
        pages = [-(-length // 16) for length in lengths]
        graph.plan(
            AttentionPlan(
                kv_slots=np.zeros(len(lengths), dtype=np.int32),
                query_indptr=np.arange(len(lengths) + 1, dtype=np.int32),
                page_indptr=np.cumsum([0, *pages]).astype(np.int32),
                page_ids=np.zeros(sum(pages), dtype=np.int32),
                seq_lens=np.array(lengths, dtype=np.int32),
                num_decodes=len(lengths),
            )
        )
        seen.append(graph._step.kv_slots.data_ptr())  # type: ignore[attr-defined]  # looks inside
    assert len(set(seen)) == 1


@pytest.mark.parametrize("backend", ["torch_native", "cpu"])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("head_dim", [16, 64])
def test_shapes_of_real_models(window: int | None, head_dim: int, backend: str) -> None:
    """A batch of decode rows with heads in groups of three."""
    check(Case(tuple((i, 1) for i in range(5)), 4, 9, 3, head_dim, window), backend=backend)


def test_scale_is_the_layers() -> None:
    """A layer may ask for another factor than 1 / sqrt(head_dim)."""
    check(Case(((3, 2), (5, 1)), 1, 2, 2, 8, None), scale=0.1)


@pytest.mark.parametrize("backend", ["torch_native", "cpu"])
def test_capped_prefills_are_computed_in_pieces(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all scores of a row would take too much memory."""
    monkeypatch.setattr(torch_native, "_MOST_SCORES", 60)
    check(Case(((0, 9), (7, 5), (4, 1)), 1, 4, 2, 8, 6, softcap=1.0), scale=0.7, backend=backend)
    check(Case(((0, 9),), 4, 4, 2, 8, None, softcap=1.0), backend=backend)


def test_the_cpu_backend_refuses_what_it_cannot_read() -> None:
    """bfloat16 and odd head sizes fall to torch, unless asked for by name."""
    config = ModelConfig.from_dict(tiny_config(), source="test")
    storage = KVStorage(config, Placement(dtype=torch.bfloat16), num_pages=1, page_size=1)
    assert type(attention_backend(None, storage)) is TorchNativeAttention
    with pytest.raises(RequestError, match="needs float32 on a CPU"):
        attention_backend("cpu", storage)
