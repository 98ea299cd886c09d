"""float32 kernels for the few rows of a decode step on a CPU, compiled by numba.

torch's own operators are made for many rows: at one row they spend most of the time around the work, and at a few rows
on rearranging weights. Weights stay in their one place and layout, [out_features, in_features].

Importing this package imports numba (0.4 s); the first call of each kernel compiles it, once a machine (numba keeps
machine code beside these files, or in its own cache folder). Kernels hold the GIL and are called from one thread at a
time therefore, which numba's simplest threading layer asks for.
"""

from __future__ import annotations

from .elementwise import gelu_tanh_and_mul, norm_heads, rms_norm, rotate, silu_and_mul
from .paged_decode import decode_attention, supports_head_dim
from .products import linear
from .vectors import use_torch_threads

__all__ = [
    "decode_attention",
    "gelu_tanh_and_mul",
    "linear",
    "norm_heads",
    "rms_norm",
    "rotate",
    "silu_and_mul",
    "supports_head_dim",
    "use_torch_threads",
]
