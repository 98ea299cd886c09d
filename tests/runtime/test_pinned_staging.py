"""Numbers on their way to a device: where they come to lie, and when the host waits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.sampling import ints

from palmette.runtime import pinned_staging
from palmette.runtime.pinned_staging import PinnedStaging, staged_words


class _Buffer:
    """Stands for page-locked memory whose copies are done when the test says so."""

    made: list[_Buffer]

    def __init__(self, capacity_words: int) -> None:
        self.is_free = True
        self.sent: list[list[int]] = []
        _Buffer.made.append(self)

    def send(self, arrays: list[np.ndarray], places: list[int], words: int, out: torch.Tensor) -> None:
        self.is_free = False
        self.sent.append(arrays[0].tolist())


@pytest.fixture
def staging(monkeypatch: pytest.MonkeyPatch) -> PinnedStaging:
    _Buffer.made = []
    monkeypatch.setattr(pinned_staging, "_Buffer", _Buffer)
    monkeypatch.setattr(pinned_staging, "_FIRST_BUFFERS", 2)
    monkeypatch.setattr(pinned_staging, "_MOST_BUFFERS", 4)
    return PinnedStaging(torch.device("cuda"))


def _send(staging: PinnedStaging, number: int) -> None:
    staging.upload([ints([number])], out=torch.empty(4, dtype=torch.int32))


def test_more_buffers_are_made_while_copies_are_on_their_way(staging: PinnedStaging) -> None:
    """A copy waits for the step before it: the host must not wait for the copy."""
    for number in range(4):
        _send(staging, number)
    assert [buffer.sent for buffer in _Buffer.made] == [[[0]], [[1]], [[2]], [[3]]]


def test_the_oldest_is_used_again(staging: PinnedStaging) -> None:
    """Of buffers whose copies are done, and where there are as many as there may be."""
    for number in range(4):
        _send(staging, number)
    _send(staging, 4)
    _Buffer.made[1].is_free = True
    _send(staging, 5)
    assert [buffer.sent for buffer in _Buffer.made] == [[[0], [4]], [[1], [5]], [[2]], [[3]]]


def test_few_copies_need_no_more_buffers(staging: PinnedStaging) -> None:
    """Where copies are done before the ring comes round, it stays as it is."""
    for number in range(6):
        _send(staging, number)
        for buffer in _Buffer.made:
            buffer.is_free = True
    assert [len(buffer.sent) for buffer in _Buffer.made] == [3, 3]


def test_arrays_fill_what_is_given_from_its_beginning_on() -> None:
    """Each begins at a multiple of 16 bytes, and views of the memory come back."""
    arrays = [ints([1, 2, 3]), ints([]), ints([4, 5, 6, 7, 8])]
    out = torch.full((staged_words([3, 0, 5]) + 2,), -1, dtype=torch.int32)
    views = PinnedStaging(torch.device("cpu")).upload(arrays, out)
    assert [view.tolist() for view in views] == [array.tolist() for array in arrays]
    assert out.tolist() == [1, 2, 3, -1, 4, 5, 6, 7, 8, -1, -1, -1, -1, -1]
    assert all(view.untyped_storage().data_ptr() == out.untyped_storage().data_ptr() for view in views)


def test_memory_is_written_once_its_last_copy_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is longer than it, for which it is replaced: the copy was still reading."""
    empty, at_waits = torch.empty, []

    class _Event:
        """Stands for CUDA's."""

        def record(self) -> None:
            """Nothing is copied in the meantime."""

        def synchronize(self) -> None:
            at_waits.append(int(buffer._words[0]))

    monkeypatch.setattr(torch, "empty", lambda size, dtype, pin_memory: empty(size, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    buffer, out = pinned_staging._Buffer(4), torch.zeros(64, dtype=torch.int32)
    for number, words in ((1, 4), (2, 4), (3, 40), (4, 4)):
        buffer.send([ints([number] * words)], [0], words, out)
        assert out[:words].tolist() == [number] * words
    assert at_waits == [1, 2, 3]
