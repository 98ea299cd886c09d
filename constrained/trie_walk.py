"""The walk of the token trie beside the automaton: the one hot loop of a mask.

Plain Python here: kernels.py compiles the same function with numba, and this one is the fallback and the tests' twin.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_UNKNOWN = -1
_DEAD = -2


def walk_trie(
    table: NDArray[np.int32],
    byte: NDArray[np.uint8],
    end: NDArray[np.int32],
    depth: NDArray[np.int32],
    first: NDArray[np.int32],
    ids: NDArray[np.int32],
    path: NDArray[np.int32],
    landing: NDArray[np.int32],
    node: int,
) -> int:
    """Visit the trie in order from `node` on, as far as the known transitions reach.

    Args:
        table: [states, 256] transitions of the automaton, -1 unknown, -2 dead.
        byte, end, depth, first, ids: the arrays of `TokenTrie`.
        path: [longest token + 1]; ``path[0]`` is the state to start from, ``path[d]`` the state after d bytes. Written.
        landing: [tokens] the state after each allowed token. Written; entries of other tokens are left alone.
        node: where to start: 0, or what an earlier call returned.

    Returns:
        The node whose transition is unknown, to go on from once it is known, or the number of nodes.
    """
    nodes = len(byte)
    while node < nodes:
        level = depth[node]
        state = table[path[level - 1], byte[node]]
        if state == _UNKNOWN:
            return node
        if state == _DEAD:
            node = end[node]
            continue
        path[level] = state
        for index in range(first[node], first[node + 1]):
            landing[ids[index]] = state
        node += 1
    return nodes
