"""Rows of token masks by id: the host's side of the table that a sampler keeps on its device."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from .backends.backend import TokenGrammar
from .errors import PalmetteError
from .vocabulary import Vocabulary


class MaskTableFullError(PalmetteError):
    """Every row of a `MaskTable` is referenced."""


class MaskTable:
    """A fixed number of mask rows, shared by (grammar, state) and by equal bits, and referenced while in use.

    A row is one of: free; referenced (some step or request holds it); or cached (nobody holds it, but its bits may be
    asked for again, until it is the least recently used and its place is needed).

    Attributes:
        rows: number of rows.
        words: uint32 words of a row.
    """

    def __init__(self, rows: int, vocabulary: Vocabulary) -> None:
        """A table of `rows` free rows for masks over `vocabulary`."""
        if rows < 1:
            raise ValueError(f"rows must be at least 1, not {rows}")
        self.rows = rows
        self.words = vocabulary.words
        self._vocabulary = vocabulary
        self._bits = np.zeros((rows, self.words), np.uint32)
        self._references = [0] * rows
        self._free = list(range(rows - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # unreferenced rows, least recently used first
        self._rows_of: WeakKeyDictionary[TokenGrammar, dict[int, tuple[int, int]]] = WeakKeyDictionary()
        """By grammar and state: a row, and how often it had been written. A busy row would keep its grammars alive."""
        self._writes = [0] * rows
        self._row_of_bits: dict[bytes, int] = {}
        self._content: list[bytes | None] = [None] * rows  # None: free or private
        self._updated: dict[int, None] = {}  # rows written since take_updates, in order

    def acquire(self, grammar: TokenGrammar, state: int) -> int:
        """Row id of `grammar.mask(state)`, referenced until `release`.

        Raises:
            ValueError: `grammar` was compiled for another vocabulary.
            MaskTableFullError: the row is not there and all rows are referenced.
        """
        if grammar.vocabulary is not self._vocabulary:
            raise ValueError(f"{grammar!r} was compiled for another vocabulary than this table's")
        known = self._rows_of.get(grammar)
        if known is None:
            known = self._rows_of[grammar] = {}
        row, writes = known.get(state, (0, -1))
        if self._writes[row] != writes:
            row = self._row_with(grammar.mask(state))
            known[state] = row, self._writes[row]
        self._reference(row)
        return row

    def acquire_private(self, bits: NDArray[np.uint32]) -> int:
        """Row id of `bits` ([words] uint32) for one holder alone, free again at its `release`.

        Raises:
            MaskTableFullError: all rows are referenced.
        """
        row = self._write(bits)
        self._references[row] = 1
        return row

    def release(self, row: int) -> None:
        """Give back one reference to `row`.

        Raises:
            ValueError: nobody references `row`.
        """
        if not 0 <= row < self.rows or self._references[row] == 0:
            raise ValueError(f"row {row} is not referenced")
        self._references[row] -= 1
        if self._references[row]:
            return
        if self._content[row] is None:
            self._free.append(row)
        else:
            self._cached[row] = None

    def take_updates(self) -> tuple[NDArray[np.int32], NDArray[np.uint32]] | None:
        """Row ids ([n] int32) and bits ([n, words] uint32, copies) written since the last call, or None."""
        if not self._updated:
            return None
        rows = np.array(list(self._updated), np.int32)
        self._updated.clear()
        return rows, self._bits[rows]

    def _reference(self, row: int) -> None:
        self._references[row] += 1
        self._cached.pop(row, None)

    def _row_with(self, bits: NDArray[np.uint32]) -> int:
        content = bits.tobytes()
        row = self._row_of_bits.get(content)
        if row is None:
            row = self._write(bits)
            self._content[row] = content
            self._row_of_bits[content] = row
        return row

    def _write(self, bits: NDArray[np.uint32]) -> int:
        if bits.shape != (self.words,) or bits.dtype != np.uint32:
            raise ValueError(f"bits must be uint32 [{self.words}], not {bits.dtype} {list(bits.shape)}")
        row = self._take_row()
        self._bits[row] = bits
        self._writes[row] += 1
        self._updated[row] = None
        return row

    def _take_row(self) -> int:
        if self._free:
            return self._free.pop()
        if not self._cached:
            raise MaskTableFullError(
                f"all {self.rows} rows of the mask table are referenced; release some or make it larger"
            )
        row, _ = self._cached.popitem(last=False)
        self._forget(row)
        return row

    def _forget(self, row: int) -> None:
        content = self._content[row]
        if content is not None:
            del self._row_of_bits[content]
        self._content[row] = None

    def check_invariants(self, held: Iterable[int] | None = None) -> None:
        """Raise AssertionError unless every row is in exactly one condition and the indexes agree with the rows.

        Args:
            held: the row of each reference that was not released; None where nobody knows.
        """
        if held is not None:
            assert Counter(held) == Counter(dict(enumerate(self._references))), self._references
        referenced = {row for row, count in enumerate(self._references) if count}
        groups = [set(self._free), set(self._cached), referenced]
        assert sum(len(group) for group in groups) == self.rows, groups
        assert set.union(*groups) == set(range(self.rows)), groups
        for row in self._free:
            assert self._content[row] is None, row
        for row in self._cached:
            assert self._content[row] is not None, row
        for content, row in self._row_of_bits.items():
            assert self._content[row] == content == self._bits[row].tobytes(), row
        for grammar, known in self._rows_of.items():
            for state, (row, writes) in known.items():
                assert self._writes[row] != writes or self._content[row] == grammar.mask(state).tobytes(), row
