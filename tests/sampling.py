"""Step plans for tests of sampling: one row a slot, of which only the last token is sampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from palmette.runtime.batch import Int32Array, SlotSetup, StepMasks, StepPlan
from palmette.runtime.sampler import Sampler
from palmette.runtime.sampling_params import SamplingParams


def ints(values: Sequence[int]) -> Int32Array:
    """An int32 array, also of nothing."""
    return np.array(values, dtype=np.int32)


def setup(
    slot: int,
    params: SamplingParams,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    ends: Sequence[int] = (),
) -> SlotSetup:
    """Sampling state of one slot."""
    return SlotSetup(slot=slot, params=params, prompt_ids=ints(prompt), output_ids=ints(output), end_ids=ints(ends))


def plan_of(
    slots: Sequence[int],
    *,
    positions: Sequence[int] | None = None,
    tokens: Sequence[Sequence[int]] | None = None,
    seq_lens: Sequence[int] | None = None,
) -> StepPlan:
    """A step that samples every row.

    Args:
        slots: of the rows.
        positions: output position of each row's sampled token; 0 unless given.
        tokens: each row's tokens of this step; one token 0 unless given.
        seq_lens: context of each row, this step's tokens included; just these tokens unless given.
    """
    rows = tokens or [[0]] * len(slots)
    lengths = [len(row) for row in rows]
    ends = list(lengths if seq_lens is None else seq_lens)
    places = [place for length, end in zip(lengths, ends, strict=True) for place in range(end - length, end)]
    return StepPlan(
        step=7,
        setups=(),
        token_ids=ints([token for row in rows for token in row]),
        positions=ints(places),
        kv_slots=ints(places),
        query_indptr=ints([0, *np.cumsum(lengths)]),
        page_indptr=ints([0] * (len(slots) + 1)),
        page_ids=ints([]),
        seq_lens=ints(ends),
        slots=ints(slots),
        sample_rows=ints(range(len(slots))),
        output_positions=ints([0] * len(slots) if positions is None else positions),
        score_tokens=ints([]),
        score_targets=ints([]),
        score_top=ints([]),
    )


def masked(*rows: int) -> StepMasks:
    """Masks of a step: the row of the mask table for each sampled row, -1 for none."""
    return StepMasks(ints(rows))


def sampler_of(setups: Sequence[SlotSetup], vocab_size: int, *, valid_vocab: int | None = None) -> Sampler:
    """A CPU sampler with 16 slots and 8 mask rows, loaded."""
    sampler = Sampler(vocab_size, 16, 8, "cpu", valid_vocab=valid_vocab)
    sampler.load(setups)
    return sampler


def random_logits(seed: int, rows: int, vocab_size: int) -> Tensor:
    """Normal logits, scaled so that a few tokens hold most of the probability."""
    return torch.randn((rows, vocab_size), generator=torch.Generator().manual_seed(seed)) * 3


def packed_mask(allowed: Sequence[int], vocab_size: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """One row of a mask table: bit i % 32 of word i // 32 is token i."""
    bits = np.zeros(-(-vocab_size // 32), dtype=np.uint32)
    for token_id in allowed:
        bits[token_id // 32] |= np.uint32(1 << token_id % 32)
    return bits
