"""Sampling options by slot: what is loaded is what the device reads, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import setup

from palmette.runtime.errors import EngineError, RequestError
from palmette.runtime.philox import signed_seed
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.slot_options import SlotOptions

_V = 50
_SLOTS = 8

_PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0, 5),
    top_p=st.floats(0.01, 1),
    top_k=st.sampled_from([0, 1, 7, _V, _V + 1, 1 << 31]),
    min_p=st.floats(0, 1),
    seed=st.integers(0, (1 << 64) - 1),
    min_tokens=st.integers(0, 9),
    logprobs=st.none() | st.integers(0, 50),
    logit_bias=st.dictionaries(st.integers(0, _V - 1), st.floats(-100, 100), max_size=2),
)


def _options() -> SlotOptions:
    return SlotOptions(_V, _SLOTS, torch.device("cpu"))


def _assert_holds(options: SlotOptions, slot: int, params: SamplingParams) -> None:
    drawn = options.draw_options(torch.tensor([slot]))
    assert options.seeds(torch.tensor([slot])).tolist() == [signed_seed(params.seed or 0)]
    assert drawn.temperature.item() > 0
    assert drawn.temperature.item() == pytest.approx(params.temperature, rel=1e-6, abs=1e-37)
    assert drawn.min_p.item() == pytest.approx(params.min_p, rel=1e-6, abs=1e-37)
    assert drawn.top_p.item() == params.top_p
    assert drawn.top_k.item() == min(params.top_k or _V, _V)
    assert options.greedy[slot] == params.greedy
    assert options.ranked[slot] == (params.top_k > 0 or params.top_p < 1)
    assert options.floored[slot] == (params.min_p > 0)
    assert options.min_tokens[slot] == params.min_tokens
    assert options.logprobs[slot] == (-1 if params.logprobs is None else params.logprobs)
    assert (slot in options.bias) == bool(params.logit_bias)
    if params.logit_bias:
        ids, values = options.bias[slot]
        held = dict(zip(ids.tolist(), values.tolist(), strict=True))
        assert held == pytest.approx(params.logit_bias, rel=1e-6, abs=1e-37)


@given(st.lists(st.dictionaries(st.integers(0, _SLOTS - 1), _PARAMS, max_size=_SLOTS), max_size=4))
def test_every_slot_holds_what_it_was_loaded_with_last(steps: list[dict[int, SamplingParams]]) -> None:
    """Loads of any slots in any order leave each slot with its own options, in float32 or better."""
    options, last = _options(), dict[int, SamplingParams]()
    for step in steps:
        options.load([setup(slot, params) for slot, params in step.items()])
        last |= step
    for slot, params in last.items():
        _assert_holds(options, slot, params)


def test_an_unloaded_slot_is_greedy_and_filters_nothing() -> None:
    """A slot that nobody loaded asks for nothing."""
    options = _options()
    assert options.greedy[3]
    assert not options.ranked[3]
    assert not options.floored[3]
    assert (options.min_tokens[3], options.logprobs[3], options.bias, options.end_ids) == (0, -1, {}, {})


@given(st.lists(st.integers(0, _V + 20), max_size=6))
def test_end_ids_are_those_of_the_model_once_each(ends: Sequence[int]) -> None:
    """End tokens that the model does not have are passed over, and repeated ones kept once; none leaves no entry."""
    options = _options()
    options.load([setup(2, SamplingParams(seed=1), ends=ends)])
    known = sorted({token for token in ends if token < _V})
    assert {slot: held.tolist() for slot, held in options.end_ids.items()} == ({2: known} if known else {})
    options.load([setup(2, SamplingParams(seed=1))])
    assert 2 not in options.end_ids


@pytest.mark.parametrize(
    ("slot", "params", "error"),
    [
        (_SLOTS, SamplingParams(seed=1), EngineError),
        (-1, SamplingParams(seed=1), EngineError),
        (1, SamplingParams(), EngineError),
        (1, SamplingParams(seed=1, logit_bias={_V: 1.0}), RequestError),
    ],
)
def test_a_wrong_setup_loads_nothing(slot: int, params: SamplingParams, error: type[Exception]) -> None:
    """An unknown slot, a missing seed or an unknown token is refused before any slot of the step changes."""
    options = _options()
    before = SamplingParams(seed=5, top_k=3, min_tokens=2)
    options.load([setup(0, before)])
    with pytest.raises(error):
        options.load([setup(0, SamplingParams(seed=6, logit_bias={1: 2.0})), setup(slot, params)])
    _assert_holds(options, 0, before)
    options.load([])
    _assert_holds(options, 0, before)
