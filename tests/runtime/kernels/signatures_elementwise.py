"""The small kernels of a step, before matrix products and between them, in Llama 3.1 8B and in odd shapes."""

from __future__ import annotations

from typing import Any

from palmette.runtime.kernels import activation, last_tokens, rms_norm, rotary

_DEPENDENT = {"DEPENDENT": True, "launch_pdl": True}
_NORM = {"eps": "fp32", "offset": "fp32", "scale": "fp32"}
_LLAMA = {
    "H": 32,
    "KV": 8,
    "D": 128,
    "HALF": 64,
    "BLOCK_HEADS": 16,
    "BLOCK_HALF": 64,
    "BLOCK_REST": 1,
    "num_warps": 4,
} | _DEPENDENT


def _pointers(dtype: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, f"*{dtype}")


def _norm(dtype: str, size: int, block: int, **constexprs: Any) -> tuple[Any, str, dict[str, str], dict[str, Any]]:
    types = _pointers(dtype, "x", "update", "weight", "out") | _NORM
    warps = rms_norm.row_warps(block)
    return (
        rms_norm,
        "_rms_norm_row",
        types,
        {"SIZE": size, "BLOCK": block, "num_warps": warps} | _DEPENDENT | constexprs,
    )


def _rotate(dtype: str, slots: str, **constexprs: Any) -> tuple[Any, str, dict[str, str], dict[str, Any]]:
    types = _pointers(dtype, "qkv", "cos", "sin", "q", "keys", "values") | {"kv_slots": f"*{slots}:1"}
    return rotary, "_rotate_and_write_heads", types, _LLAMA | constexprs


SIGNATURES: list[tuple[Any, str, dict[str, str], dict[str, Any]]] = [
    _norm("bf16", 4096, 4096, update=None),
    _norm("bf16", 4096, 4096),
    _norm("bf16", 4096, 4096, DEPENDENT=False, launch_pdl=False),
    _norm("fp16", 5120, 8192),
    _norm("fp32", 18432, 32768),
    *(
        (
            rms_norm,
            "_norm_some_heads",
            _pointers(dtype, "x", "weight") | {"eps": "fp32", "offset": "fp32"},
            {"HEADS": 32, "NORMED": 40, "TOTAL": 48, "DIM": dim, "BLOCK_HEADS": 16, "BLOCK_DIM": 128, "num_warps": 4}
            | _DEPENDENT,
        )
        for dtype, dim in (("bf16", 128), ("fp32", 96))
    ),
    *(
        (
            activation,
            "_gate_and_mul",
            _pointers(dtype, "gate_up", "out"),
            {"SIZE": 14336, "GELU": gelu, "BLOCK": 1024, "num_warps": 4} | _DEPENDENT,
        )
        for dtype, gelu in (("bf16", False), ("fp16", True), ("fp32", True))
    ),
    _rotate("bf16", "i32"),
    _rotate("bf16", "i32", DEPENDENT=False, launch_pdl=False),
    _rotate("fp32", "i64", D=96, HALF=36, BLOCK_REST=32),
    _rotate("fp16", "i32", cos=None, sin=None, HALF=0, BLOCK_HALF=1, BLOCK_REST=128),
    *(
        (
            rotary,
            "_angles_of",
            {"positions": "*i32:1", "frequencies": "*fp32", "factor": "fp32"} | _pointers(dtype, "cos", "sin"),
            {"HALF": 64, "BLOCK": 64, "num_warps": 1},
        )
        for dtype in ("bf16", "fp32")
    ),
    (
        last_tokens,
        "_known_tokens",
        {"token_ids": "*i32", "slots": "*i32", "last_tokens": "*i64", "out": "*i32", "count": "i32"},
        {"BLOCK": 256},
    ),
]
