"""The sampling kernels, for the vocabularies of Llama 3.1 8B and of the grammar benchmarks, and an odd one."""

from __future__ import annotations

from typing import Any

from palmette.runtime.kernels import sampling, sampling_rank

_SCORES = {"stride": "i32:16", "shaped": "*fp32", "shaped_rows": "*i32", "masks": "*i32", "mask_rows": "*i32"}
_PEAKS = {
    "slots": "*i32",
    "slot_table": "*i32",
    "peaks": "*fp32",
    "thresholds": "*i64",
    "chunks": "i32",
}
_CHUNKS = _SCORES | {"peaks": "*fp32", "places": "*i32", "a_chunk": "i32", "chunks": "i32"}
_SUMS = _SCORES | _PEAKS | {"sums": "*i64", "a_chunk": "i32"}
_TOKENS = _SCORES | _PEAKS | {
    "positions": "*i32",
    "places": "*i32",
    "sums": "*i64",
    "token_ids": "*i32",
    "last_tokens": "*i64",
}  # fmt: skip
_RANKED = (
    _SCORES
    | _PEAKS
    | {
        "ranked": "*i32",
        "counts": "*i32",
        "shared": "*i64",
        "candidates": "*i64",
        "share": "i32",
        "shares": "i32",
    }
)


def _row(width: int, valid: int, *, shaped: bool = False, masked: bool = False) -> dict[str, Any]:
    absent = ({} if shaped else {"shaped": None}) | ({} if masked else {"masks": None})
    return {"WIDTH": width, "VALID": valid, "SHAPED": shaped, "MASKED": masked} | absent


def _three(dtype: str, row: dict[str, Any]) -> list[tuple[Any, str, dict[str, str], dict[str, Any]]]:
    """The kernels of a step with random rows, some of them ranked."""
    logits, full = {"logits": f"*{dtype}"}, row | {"BLOCK": 4096, "CHUNKS": 32, "RANKED": True}
    return [
        (sampling, "_chunk_peaks", logits | _CHUNKS, row | {"BLOCK": 4096, "num_warps": 4}),
        (sampling, "_block_weights", logits | _SUMS, full | {"num_warps": 8}),
        (sampling, "_row_tokens", logits | _TOKENS, full | {"RANDOM": True, "num_warps": 8}),
    ]


def _thresholds(dtype: str, row: dict[str, Any]) -> list[tuple[Any, str, dict[str, str], dict[str, Any]]]:
    """The kernels that rank."""
    arguments = {"logits": f"*{dtype}"} | _RANKED
    launch = row | {"BLOCK": 2048, "CHUNKS": 32, "BINS": 2048, "num_warps": 8}
    return [
        (sampling_rank, "_count", arguments, launch),
        (sampling_rank, "_gather", arguments, launch | {"CANDIDATES": 2048}),
        (sampling_rank, "_cut", arguments, launch | {"CANDIDATES": 2048}),
    ]


_GREEDY = {"thresholds": None, "sums": None, "RANKED": False, "BLOCK": 4096, "CHUNKS": 32}

SIGNATURES: list[tuple[Any, str, dict[str, str], dict[str, Any]]] = [
    *_three("bf16", _row(128256, 128000)),
    *_thresholds("bf16", _row(128256, 128000)),
    *_three("bf16", _row(49152, 49152, masked=True)),
    *_three("fp32", _row(151936, 151669, shaped=True, masked=True)),
    *_thresholds("fp32", _row(151936, 151669, shaped=True, masked=True)),
    *_three("fp16", _row(50257, 50257, shaped=True)),
    (
        sampling,
        "_row_tokens",
        {"logits": "*bf16"} | _TOKENS,
        _row(128256, 128256) | _GREEDY | {"RANDOM": False, "num_warps": 1},
    ),
]
