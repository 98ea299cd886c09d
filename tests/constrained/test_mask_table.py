"""Rows of masks by id."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.constrained.reference import BYTES

from palmette.constrained import Grammar, MaskTable, MaskTableFullError, Vocabulary, compile_grammar

ROWS = 3
GRAMMARS = [compile_grammar(Grammar.regex(pattern), BYTES) for pattern in ("abc", "a(?:bc)?", "b[cd]e", "ab?c?")]


def states_of(index: int) -> list[int]:
    """All states of a small grammar."""
    grammar = GRAMMARS[index]
    states = [grammar.start]
    for state in states:
        for byte in b"abcde":
            following = grammar.advance(state, byte)
            if following is not None and following not in states:
                states.append(following)
    return states


class MaskTableMachine(RuleBasedStateMachine):
    """Holders acquire and release rows at random; a device copies the updates now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.table = MaskTable(ROWS, BYTES)
        self.device = np.zeros((ROWS, BYTES.words), np.uint32)
        self.held: list[tuple[int, bytes, bool]] = []  # row, its bits, private

    def expect(self, row: int, bits: np.ndarray, private: bool) -> None:
        """Note that `row` is held with `bits`."""
        shared = [held for held in self.held if held[0] == row]
        assert not (private and shared), "a private row was handed to two holders"
        assert not any(held[2] for held in shared), "a private row leaked to another holder"
        self.held.append((row, bits.tobytes(), private))

    @rule(index=st.integers(0, len(GRAMMARS) - 1), data=st.data())
    def acquire(self, index: int, data: st.DataObject) -> None:
        """A row of a grammar's state, unless every row is held with other bits."""
        state = data.draw(st.sampled_from(states_of(index)))
        bits = GRAMMARS[index].mask(state)
        try:
            row = self.table.acquire(GRAMMARS[index], state)
        except MaskTableFullError:
            assert len({held[0] for held in self.held}) == ROWS
            assert not any(held[1] == bits.tobytes() and not held[2] for held in self.held)
        else:
            self.expect(row, bits, private=False)

    @rule(seed=st.integers(0, 9))
    def acquire_private(self, seed: int) -> None:
        """A row of one holder alone."""
        bits = np.random.default_rng(seed).integers(0, 2**32, BYTES.words, np.uint32)
        try:
            row = self.table.acquire_private(bits)
        except MaskTableFullError:
            assert len({held[0] for held in self.held}) == ROWS
        else:
            self.expect(row, bits, private=True)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Give one of the held rows back."""
        held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.table.release(held[0])

    @rule()
    def upload(self) -> None:
        """After an upload, the device has the right bits in every held row."""
        updates = self.table.take_updates()
        if updates is not None:
            rows, bits = updates
            assert rows.dtype == np.int32
            assert len(set(rows.tolist())) == len(rows)
            self.device[rows] = bits
        assert self.table.take_updates() is None
        for row, content, _ in self.held:
            assert self.device[row].tobytes() == content

    @invariant()
    def holds(self) -> None:
        """Every row is free, cached or referenced, and indexes agree."""
        self.table.check_invariants(held=[row for row, _, _ in self.held])


TestMaskTable = MaskTableMachine.TestCase
TestMaskTable.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_busy_row_does_not_keep_grammars_alive() -> None:
    """A mask that every grammar of its kind has is never evicted; the grammars that asked for it may go."""
    table, gone = MaskTable(2, BYTES), []
    for least in range(1, 6):
        grammar = compile_grammar(Grammar.regex(f"[a-z]{{{least},}}"), BYTES)
        table.release(table.acquire(grammar, grammar.start))
        gone.append(weakref.ref(grammar))
    del grammar
    gc.collect()
    assert [reference() for reference in gone] == [None] * 5


def test_equal_bits_share_a_row() -> None:
    """States of different grammars with equal masks get one row, kept while any of them is held."""
    table = MaskTable(2, BYTES)
    row = table.acquire(GRAMMARS[0], GRAMMARS[0].start)
    assert table.acquire(GRAMMARS[1], GRAMMARS[1].start) == row
    table.release(row)
    table.release(row)
    with pytest.raises(ValueError, match="not referenced"):
        table.release(row)


def test_least_recently_used_row_goes_first() -> None:
    """Unreferenced rows stay until their place is needed; then the one released longest ago goes."""
    table = MaskTable(2, BYTES)
    states = states_of(0)
    rows = [table.acquire(GRAMMARS[0], state) for state in states[:2]]
    for row in reversed(rows):
        table.release(row)
    assert table.acquire(GRAMMARS[0], states[2]) == rows[1]
    assert table.acquire(GRAMMARS[0], states[0]) == rows[0]


def test_full_table() -> None:
    """When all rows are referenced the error says how many there are."""
    table = MaskTable(1, BYTES)
    table.acquire(GRAMMARS[0], GRAMMARS[0].start)
    with pytest.raises(MaskTableFullError, match="all 1 rows"):
        table.acquire_private(np.zeros(BYTES.words, np.uint32))


def test_wrong_arguments() -> None:
    """Another vocabulary, another shape and no rows are refused."""
    table = MaskTable(1, BYTES)
    other = compile_grammar(Grammar.regex("a"), Vocabulary([b"a"]))
    with pytest.raises(ValueError, match="another vocabulary"):
        table.acquire(other, other.start)
    with pytest.raises(ValueError, match="bits must be uint32"):
        table.acquire_private(np.zeros(1, np.uint32))
    with pytest.raises(ValueError, match="rows must be at least 1"):
        MaskTable(0, BYTES)
