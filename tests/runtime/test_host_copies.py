"""Numbers on their way to the host: whose memory is used again, and when."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from palmette.runtime.host_copies import HostCopies


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> HostCopies:
    """As for a GPU, but of words that lie on the CPU, into ordinary memory."""
    empty = torch.empty

    def ordinary(*size: int, pin_memory: bool = False, **options: Any) -> Tensor:
        return empty(*size, **options)

    monkeypatch.setattr(torch, "empty", ordinary)
    return HostCopies(torch.device("cuda"))


def words(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def test_steps_in_flight_have_memory_of_their_own(copies: HostCopies) -> None:
    """A late result is not overwritten by those after it, in whatever order they are taken."""
    flights = [copies.begin(words(number, -number)) for number in range(1, 6)]
    for number in (3, 1, 5, 4, 2):
        assert flights[number - 1].take().tolist() == [number, -number]


def test_memory_that_was_read_is_used_again(copies: HostCopies) -> None:
    """What was taken before stays as it was."""
    taken = [copies.begin(words(number)).take() for number in range(50)]
    assert [each.tolist() for each in taken] == [[number] for number in range(50)]
    assert len(copies._free) == 1


def test_more_words_than_any_step_before(copies: HostCopies) -> None:
    """They get larger memory; fewer words then have either."""
    small, large = copies.begin(words(7)), copies.begin(torch.arange(10_000, dtype=torch.int32))
    assert large.take().tolist() == list(range(10_000))
    assert small.take().tolist() == [7]
    again = copies.begin(torch.arange(9_000, dtype=torch.int32))
    assert again.take().tolist() == list(range(9_000))
    assert len(copies._free) == 2


def test_no_words_take_no_memory(copies: HostCopies) -> None:
    """As of a step that samples nothing."""
    assert copies.begin(words()).take().tolist() == []
    assert not copies._free
