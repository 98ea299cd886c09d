"""The growing int32 array."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.fake_runner import ids

from palmette.runtime.int32_buffer import Int32Buffer


@given(st.lists(st.integers(0, 9), max_size=40), st.lists(st.lists(st.integers(0, 9), max_size=40), max_size=8))
def test_it_is_a_list(start: list[int], parts: list[list[int]]) -> None:
    """Appending one by one and many at once gives the same as a list."""
    buffer, expected = Int32Buffer(start), list(start)
    for part in parts:
        buffer.extend(ids(*part))
        buffer.append(7)
        expected += [*part, 7]
    assert buffer.view.tolist() == expected
    assert len(buffer) == len(expected)
    place = len(expected) // 2
    assert buffer.first(place).tolist() == expected[:place]
    assert buffer.between(place, len(buffer)) == expected[place:]
    assert buffer.view.dtype == np.int32


def test_an_earlier_view_keeps_its_values() -> None:
    """A view taken before an append still shows what was there."""
    buffer = Int32Buffer([1, 2])
    view = buffer.view
    for value in range(100):
        buffer.append(value)
    assert view.tolist() == [1, 2]
