"""The products of decode steps as they run: every kind of tiling, with and without parts and dependent launches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from palmette.runtime.kernels.linear_tiling import Tiling, tiling_for

_Signature = tuple[str, str, dict[str, str], dict[str, Any]]
_TYPES = dict.fromkeys(("x", "weight", "bias", "out"), "*bf16") | {
    "partials": "*fp32",
    "arrivals": "*i32",
    "N": "i32:16",
    "K": "i32:16",
}


def _signature(rows: int, outputs: int, inputs: int, **changes: Any) -> _Signature:
    tiling = replace(tiling_for(rows, outputs, inputs) or Tiling(128, 128, 64, 1, 8, 4), **changes)
    columns = tiling.block_k * tiling.split_k
    constexprs: dict[str, Any] = {
        "bias": None,
        "BLOCK_N": tiling.block_n,
        "BLOCK_K": tiling.block_k,
        "SPLIT_K": tiling.split_k,
        "STEPS": -(-inputs // columns),
        "DEPENDENT": tiling.dependent,
        "num_warps": tiling.warps,
    }
    even_n, even_k = outputs % tiling.block_n == 0, inputs % columns == 0
    if tiling.block_m == 0:
        return "palmette.runtime.kernels.linear_gemv", "gemv", _TYPES, constexprs | {"EVEN": even_n and even_k}
    constexprs |= {"BLOCK_M": tiling.block_m, "STAGES": tiling.stages, "AHEAD": 256}
    types = _TYPES | {"M": "i32"}
    constexprs |= {"EVEN_N": even_n, "EVEN_K": even_k}
    return "palmette.runtime.kernels.linear_gemm", "narrow_gemm", types, constexprs


SIGNATURES = [
    _signature(1, 4096, 4096),
    _signature(1, 4096, 14336, dependent=True),
    _signature(1, 200, 1040),
    _signature(8, 6144, 4096, dependent=True),
    _signature(16, 4096, 14336),
    _signature(64, 28672, 4096),
    _signature(100, 4096, 4096),
    _signature(33, 200, 1040),
]
