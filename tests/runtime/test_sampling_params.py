"""Sampling options: what is refused when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from palmette.runtime.errors import RequestError
from palmette.runtime.sampling_params import SamplingParams


@pytest.mark.parametrize("token_id", [-1, 1 << 31, 10**12, "a", True])
def test_stop_token_ids_are_token_ids(token_id: Any) -> None:
    """What no token id can be is refused at once, and not when a step is built."""
    with pytest.raises(RequestError, match=f"stop_token_ids must be a whole number.*{token_id!r}"):
        SamplingParams(stop_token_ids=(5, token_id))
