"""The quickest tilings of `linear` on an H200, as `benchmarks/tune_linear.py --table` writes them."""

from __future__ import annotations

Values = tuple[int, int, int, int, int, int, bool, bool]
"""The fields of a `Tiling`."""

MEASURED: dict[tuple[int, int], tuple[tuple[int, Values | None], ...]] = {
    # (outputs, inputs): for up to so many rows, a tiling, or None where cuBLAS is quicker
}
