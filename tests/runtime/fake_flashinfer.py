"""FlashInfer 0.6.12's module of attention kernels as the backend calls it, computed by torch on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from palmette.runtime.attention import flashinfer_kernels, flashinfer_planner

_ARGUMENTS = (
    "floats",
    "integers",
    "pinned",
    "query_indptr",
    "page_indptr",
    "seq_lens",
    "tokens",
    "rows",
    "heads",
    "kv_heads",
    "page_size",
    "graph",
    "dim_qk",
    "dim_vo",
    "causal",
    "window_left",
)
"""Of `plan`, in FlashInfer's order."""


class FakeModule:
    """See above. `plans` are the named arguments of every plan."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.plans: list[dict[str, Any]] = []

    def plan(self, *arguments: Any) -> int:
        more = ["split_size", "no_split", "colocated"] if self.family == "fa2" else []
        self.plans.append(dict(zip((*_ARGUMENTS, *more), arguments, strict=True)))
        return len(self.plans) - 1

    def paged_run(
        self,
        float_workspace_buffer: Tensor,
        int_workspace_buffer: Tensor,
        plan_info_vec: int,
        q: Tensor,
        paged_k_cache: Tensor,
        paged_v_cache: Tensor,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        o: Tensor,
        maybe_lse: None,
        mask_mode: int,
        layout: int,
        window_left: int,
        enable_pdl: bool,
        maybe_custom_mask: None,
        maybe_mask_indptr: None,
        maybe_alibi_slopes: None,
        maybe_prefix_len_ptr: None,
        maybe_token_pos_in_items_ptr: None,
        maybe_max_item_len_ptr: None,
        logits_soft_cap: float,
        sm_scale: float,
        scale_q: None,
        scale_k: None,
        scale_v: None,
        rope_scale: float,
        rope_theta: float,
        token_pos_in_items_len: int,
        workspace_size: int,
    ) -> None:
        plan = self.plans[plan_info_vec]
        assert plan["causal"] == (mask_mode == 1)
        assert plan["window_left"] == window_left
        assert plan["tokens"] == len(q) == int(qo_indptr[-1])
        assert torch.equal(plan["query_indptr"], qo_indptr)
        assert torch.equal(plan["page_indptr"], paged_kv_indptr)
        page_size = paged_k_cache.shape[1]
        for row in range(len(paged_kv_last_page_len)):
            pages = paged_kv_indices[paged_kv_indptr[row] : paged_kv_indptr[row + 1]].long()
            length = (len(pages) - 1) * page_size + int(paged_kv_last_page_len[row])
            assert length == plan["seq_lens"][row]
            k, v = (cache[pages].flatten(0, 1)[:length] for cache in (paged_k_cache, paged_v_cache))
            part = slice(int(qo_indptr[row]), int(qo_indptr[row + 1]))
            o[part] = _attend(q[part], k, v, sm_scale, logits_soft_cap, window_left)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, cap: float, window_left: int) -> Tensor:
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (k, v))
    scores = q.transpose(0, 1) @ keys.transpose(1, 2) * scale
    if cap:
        scores = cap * (scores / cap).tanh()
    key, query = torch.arange(len(k)), torch.arange(len(k) - len(q), len(k))[:, None]
    seen = (key <= query) & ((key >= query - window_left) | (window_left < 0))
    return torch.matmul(scores.masked_fill(~seen, -torch.inf).softmax(-1), values).transpose(0, 1)


@contextmanager
def fake_flashinfer() -> Iterator[dict[str, FakeModule]]:
    """The backend runs on a CPU that passes for a Hopper GPU; gives the modules by family."""
    modules = {family: FakeModule(family) for family in ("fa2", "fa3")}
    properties = SimpleNamespace(multi_processor_count=132)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.get_device_properties", lambda _: properties)
        patch.setattr("torch.cuda.get_device_capability", lambda _: (9, 0))
        patch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
        patch.setattr(flashinfer_planner, "_page_locked", lambda _: torch.empty(0))
        patch.setattr(flashinfer_planner.Planner, "_mark_copied", lambda _: None)
        patch.setattr(flashinfer_kernels, "kernels", lambda family, *_: modules[family])
        yield modules
