"""One scheduler step as plain values: what goes to the model runner, and what comes back.

A step has *rows*. A row is one request's next tokens: a chunk of its prompt, tokens that its grammar forced, or the one
token sampled last. Prefill and decode are therefore the same thing, and one step may hold both. A request that scores
the texts of a tree has a row for each limb, and a row's pages may then be such as another row of the same step writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .sampling_params import SamplingParams

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
UInt32Array = npt.NDArray[np.uint32]

FROM_SLOT = -1
"""In `StepPlan.token_ids`: the token last sampled for the row's slot, which the host may not know yet."""

UNCONSTRAINED = -1
"""In `StepMasks.rows`: no mask."""

NOT_FINITE = -1
"""In `StepResult.token_ids`: nothing was sampled, because the row's logits hold NaN or infinity."""

NOTHING_ALLOWED = -2
"""In `StepResult.token_ids`: nothing was sampled, because every token that the row's mask allows is impossible."""


@dataclass(frozen=True, slots=True)
class SlotSetup:
    """Sampling state to load into a request slot before the step: sent when a request is admitted (again).

    Attributes:
        slot: index of the request's place in the runner's per-request buffers.
        params: with `seed` set.
        prompt_ids: the prompt, for the repetition penalty.
        output_ids: tokens generated before a retraction, for all penalties.
        end_ids: end-of-sequence and stop tokens that `min_tokens` holds back (for a grammar: none).
    """

    slot: int
    params: SamplingParams
    prompt_ids: Int32Array
    output_ids: Int32Array
    end_ids: Int32Array


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass over T tokens in R rows, of which S rows are sampled and P tokens are scored.

    Attributes:
        step: number of the step.
        setups: slots to load first.
        token_ids: [T], in row order; `FROM_SLOT` stands for the token last sampled in the row's slot.
        positions: [T], place in the request, from 0.
        kv_slots: [T], page * page_size + offset, where the token's key and value are written.
        query_indptr: [R + 1], tokens of row r are query_indptr[r] to query_indptr[r + 1].
        page_indptr: [R + 1], into page_ids.
        page_ids: pages of each row's whole context, in order; the last may be partly filled.
        seq_lens: [R], tokens of context including this step's; the first seq_len - query_len are in the pages already.
        slots: [R], request slot of each row; rows that score limbs of one tree share theirs.
        sample_rows: [S], rows whose last token's logits are sampled.
        output_positions: [S], index of the sampled token in its request's output: the random stream's counter.
        score_tokens: [P], flat token index t whose logits score score_targets; in any order, and one may come again.
        score_targets: [P], token id scored there.
        score_top: [P], how many of the likeliest tokens are wanted there beside it.
    """

    step: int
    setups: tuple[SlotSetup, ...]
    token_ids: Int32Array
    positions: Int32Array
    kv_slots: Int32Array
    query_indptr: Int32Array
    page_indptr: Int32Array
    page_ids: Int32Array
    seq_lens: Int32Array
    slots: Int32Array
    sample_rows: Int32Array
    output_positions: Int32Array
    score_tokens: Int32Array
    score_targets: Int32Array
    score_top: Int32Array


@dataclass(frozen=True, slots=True)
class StepMasks:
    """What the sampled rows of a step are held to. It comes after the plan: finding masks may take until the step
    before is processed, and the forward pass needs none.

    Attributes:
        rows: [S], row of the mask table, or `UNCONSTRAINED`.
        updates: mask-table rows to write before sampling, as ids [U] and packed bits [U, ceil(vocab / 32)].
    """

    rows: Int32Array
    updates: tuple[Int32Array, UInt32Array] | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step computed, on the host.

    Attributes:
        step: of the plan.
        token_ids: [S], sampled; `NOT_FINITE` or `NOTHING_ALLOWED` where a row failed, alone.
        logprobs: [S], of the sampled tokens under the raw logits (before penalty, mask and temperature); NaN where
            not asked for.
        top_logprobs: per sampled row, the likeliest tokens as (ids, logprobs), likeliest first; None where not asked
            for.
        score_logprobs: [P], of score_targets under the raw logits; NaN where those are not finite.
        score_top: the likeliest tokens at each of score_tokens as (ids [P, K], logprobs [P, K]), likeliest first. K is
            the largest number that the plan asks for; what a place has beyond its own number means nothing.
        device_s: how long the device was busy with the step.
    """

    step: int
    token_ids: Int32Array
    logprobs: Float32Array
    top_logprobs: tuple[tuple[Int32Array, Float32Array] | None, ...]
    score_logprobs: Float32Array
    score_top: tuple[Int32Array, Float32Array]
    device_s: float = 0.0


class StepHandle(Protocol):
    """A step in flight."""

    def sample(self, masks: StepMasks | None = None) -> None:
        """Have the step's rows sampled, under `masks` where there are any. To be called before the next launch."""

    def result(self) -> StepResult:
        """Wait for the step, sampled without masks where `sample` was not called. May be called once."""


class Runner(Protocol):
    """Executes steps in the order they are launched."""

    def launch(self, plan: StepPlan) -> StepHandle:
        """Begin the forward pass of a step."""
