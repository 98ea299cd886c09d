"""The walk of trie_walk.py compiled by numba. Imported at first use only: numba takes 0.4 s to import."""

from __future__ import annotations

from collections.abc import Callable

import numba

from . import trie_walk


def _compiled(function: Callable[..., int]) -> Callable[..., int]:
    """`function` as machine code that releases the GIL, kept between processes where some cache folder is writable."""
    try:
        kept: Callable[..., int] = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba found no folder for its cache
        kept = numba.njit(nogil=True)(function)
    return kept


walk_trie = _compiled(trie_walk.walk_trie)
