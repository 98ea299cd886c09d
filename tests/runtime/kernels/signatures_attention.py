"""The attention kernels in the shapes of Llama 3.1 8B, Gemma and small models, in every dtype."""

from __future__ import annotations

from typing import Any

import torch

from palmette.runtime.kernels import decode_attention, prefill_attention
from palmette.runtime.kernels.paged_tiles import padded_dim, precision_of

_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_SCALARS = {"scale": "fp32", "softcap": "fp32", "window": "i32"}


def _shape(dtype: torch.dtype, dim: int, group: int, window: bool, cap: bool, page: int) -> dict[str, Any]:
    return {
        "KV": 8,
        "GROUP": group,
        "D": dim,
        "PAD_D": padded_dim(dim),
        "PAGE": page,
        "HAS_WINDOW": window,
        "HAS_CAP": cap,
        "PRECISION": precision_of(dtype),
    }


def _pointers(dtype: torch.dtype, *integers: str) -> dict[str, str]:
    floats = dict.fromkeys(("q", "keys", "values", "out"), f"*{_NAMES[dtype]}")
    return floats | dict.fromkeys(("page_ids", "page_indptr", "seq_lens", *integers), "*i32") | _SCALARS


def _decode(
    dtype: torch.dtype, dim: int, group: int = 4, *, window: bool = False, cap: bool = False, page: int = 16
) -> tuple[Any, str, dict[str, str], dict[str, Any]]:
    tile = decode_attention.decode_tile(dim, dtype)
    types = _pointers(dtype, "item_rows", "split_indptr") | {"part_out": "*fp32", "part_lse": "*fp32"}
    blocks = {"BLOCK_M": 16, "BLOCK_N": tile.block_n, "num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return decode_attention, "_decode_items", types, _shape(dtype, dim, group, window, cap, page) | blocks


def _prefill(
    dtype: torch.dtype,
    dim: int,
    group: int = 4,
    *,
    window: bool = False,
    cap: bool = False,
    page: int = 16,
    packed_len: int = 4096,
) -> tuple[Any, str, dict[str, str], dict[str, Any]]:
    tile = prefill_attention.prefill_tile(dim, dtype, packed_len)
    types = _pointers(dtype, "query_indptr", "item_rows", "item_blocks")
    blocks = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n}
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return prefill_attention, "_prefill_items", types, _shape(dtype, dim, group, window, cap, page) | blocks | options


_MERGE = {"part_out": "*fp32", "part_lse": "*fp32", "split_indptr": "*i32", "out": "*bf16"}

SIGNATURES: list[tuple[Any, str, dict[str, str], dict[str, Any]]] = [
    *(
        kind(dtype, dim, group, window=window, cap=cap, page=page)
        for kind in (_decode, _prefill)
        for dtype, dim, group, window, cap, page in (
            (torch.bfloat16, 128, 4, False, False, 16),
            (torch.bfloat16, 256, 2, True, True, 16),
            (torch.float16, 64, 8, False, False, 1),
            (torch.float32, 128, 7, True, False, 16),
            (torch.float32, 80, 1, False, True, 3),
        )
    ),
    _decode(torch.float32, 256),  # a prefill of these has no registers for some 40 bytes
    _prefill(torch.bfloat16, 128, packed_len=16),
    _prefill(torch.bfloat16, 512),
    _decode(torch.bfloat16, 512, 16),
    _prefill(torch.bfloat16, 128, packed_len=64, window=True),
    (
        decode_attention,
        "_merge_items",
        _MERGE,
        {"HEADS": 32, "D": 128, "PAD_D": 128, "BLOCK": 16, "num_warps": 4},
    ),
    (decode_attention, "_merge_items", _MERGE, {"HEADS": 9, "D": 80, "PAD_D": 128, "BLOCK": 16, "num_warps": 4}),
]
