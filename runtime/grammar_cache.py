"""The compiled grammars that an engine keeps."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from palmette.constrained.grammar import Grammar

if TYPE_CHECKING:
    from palmette.constrained import TokenGrammar

DEFAULT_CAPACITY = 512
DEFAULT_MEMORY_BYTES = 512 << 20

_UNKNOWN_BYTES = 1 << 20  # of a compiled grammar of a kind that does not say how large it is


class GrammarCache:
    """Compiled grammars by their value, bounded in number and in bytes: those used longest ago go first.

    A compiled grammar grows while it is used, so its size is asked for anew whenever one comes or is asked for. The one
    that was used last stays, however large it is. A request keeps its own grammar whether it is in the cache or not.

    Args:
        capacity: how many are kept.
        memory_bytes: how large they may be together.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        self._capacity = capacity
        self._memory_bytes = memory_bytes
        self._compiled: OrderedDict[Grammar, TokenGrammar] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._compiled)

    @property
    def used_bytes(self) -> int:
        """What all of them take now."""
        return sum(map(memory_bytes, self._compiled.values()))

    def get(self, grammar: Grammar) -> TokenGrammar | None:
        """The compiled `grammar` if it is kept."""
        compiled = self._compiled.get(grammar)
        if compiled is not None:
            self._compiled.move_to_end(grammar)
            self._make_room()
        return compiled

    def put(self, grammar: Grammar, compiled: TokenGrammar) -> None:
        """Keep `compiled`."""
        self._compiled[grammar] = compiled
        self._compiled.move_to_end(grammar)
        self._make_room()

    def forget(self, grammar: Grammar) -> None:
        """Keep `grammar` no longer, if it is kept."""
        self._compiled.pop(grammar, None)

    def _make_room(self) -> None:
        used = self.used_bytes
        while len(self._compiled) > 1 and (len(self._compiled) > self._capacity or used > self._memory_bytes):
            _, compiled = self._compiled.popitem(last=False)
            used -= memory_bytes(compiled)


def memory_bytes(compiled: TokenGrammar) -> int:
    """What a compiled grammar takes now, as far as it says."""
    size: int = getattr(compiled, "memory_bytes", _UNKNOWN_BYTES)
    return size
