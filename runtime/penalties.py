"""Frequency, presence and repetition penalties, for the request slots that have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .batch import FROM_SLOT, Int32Array, SlotSetup, StepPlan
from .pinned_staging import PinnedStaging

_FIRST_ROWS = 4

_LOADED_AT_ONCE = 1 << 20
"""Tokens of prompts and outputs in one copy (4 MiB), or one slot's."""


class PenaltyCounts:
    """How often each token was generated, and which tokens the prompt holds, for slots with penalties.

    Each such slot owns one row of `_counts` and `_in_prompt` until it is loaded anew. Sampled tokens are counted on the
    device; tokens that were appended without sampling (forced by a grammar) are counted when a step computes them.

    Args:
        rows: that are there from the start. On a GPU one for every slot, as the KV pool takes what is left; where
            there are fewer than are needed they grow, which takes three times their memory for a moment.
    """

    def __init__(
        self, vocab_size: int, device: torch.device, staging: PinnedStaging | None = None, *, rows: int = 0
    ) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._staging = staging or PinnedStaging(device)
        self._counts = torch.zeros((rows, vocab_size), dtype=torch.int32, device=device)
        self._in_prompt = torch.zeros((rows, vocab_size), dtype=torch.bool, device=device)
        self._coefficients = torch.zeros((rows, 3), dtype=torch.float32, device=device)
        self._row_of: dict[int, int] = {}
        self._free = list(range(rows))
        self._counted: dict[int, int] = {}  # tokens of prompt and output counted so far, by slot

    @staticmethod
    def bytes_of(vocab_size: int, rows: int) -> int:
        """Memory of so many rows."""
        return rows * (vocab_size * (torch.int32.itemsize + torch.bool.itemsize) + 3 * torch.float32.itemsize)

    def load(self, setups: Sequence[SlotSetup]) -> None:
        """Begin (or, after a retraction, take up again) the counts of slots, in one copy unless their texts are long.

        The row of a slot without penalties is freed.
        """
        for penalised in _groups([setup for setup in setups if self._takes_row(setup)]):
            self._load(penalised)

    def _load(self, penalised: Sequence[SlotSetup]) -> None:
        """Fill the rows of these slots."""
        arrays = [array for setup in penalised for array in self._numbers(setup)]
        uploaded = iter(self._staging.upload(arrays))
        for setup, coefficients, output, prompt in zip(penalised, uploaded, uploaded, uploaded, strict=True):
            row = self._row_of[setup.slot]
            self._coefficients[row].copy_(coefficients.view(torch.float32))
            self._counts[row].copy_(self._histogram(output))
            self._in_prompt[row].copy_(self._histogram(prompt) > 0)

    def _takes_row(self, setup: SlotSetup) -> bool:
        if not setup.params.has_penalties:
            self._drop(setup.slot)
            return False
        self._row(setup.slot)
        self._counted[setup.slot] = len(setup.prompt_ids) + len(setup.output_ids)
        return True

    def _numbers(self, setup: SlotSetup) -> tuple[Int32Array, Int32Array, Int32Array]:
        """Coefficients as their bits, the output and the prompt."""
        params = setup.params
        coefficients = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        bits = np.array(coefficients, dtype=np.float32).view(np.int32)
        return bits, self._known(setup.output_ids), self._known(setup.prompt_ids)

    def _known(self, token_ids: Int32Array) -> Int32Array:
        """Without ids past the vocabulary."""
        return token_ids[token_ids < self._vocab_size]

    def _histogram(self, token_ids: Tensor) -> Tensor:
        """[V] int32: how often each token occurs."""
        counts = torch.zeros(self._vocab_size, dtype=torch.int32, device=self._device)
        return counts.index_add_(0, token_ids, torch.ones_like(token_ids))

    def _row(self, slot: int) -> int:
        if slot not in self._row_of:
            if not self._free:
                self._grow()
            self._row_of[slot] = self._free.pop()
        return self._row_of[slot]

    def _grow(self) -> None:
        held = len(self._counts)
        added = max(held, _FIRST_ROWS)
        self._counts = _with_rows(self._counts, added)
        self._in_prompt = _with_rows(self._in_prompt, added)
        self._coefficients = _with_rows(self._coefficients, added)
        self._free = list(range(held, held + added))

    def _drop(self, slot: int) -> None:
        if slot in self._row_of:
            self._free.append(self._row_of.pop(slot))
            del self._counted[slot]

    def count_forced(self, plan: StepPlan) -> None:
        """Count the tokens of the step that nothing sampled: they lie past what was counted before."""
        if not self._row_of:
            return
        forced: list[Int32Array] = []
        rows: list[Int32Array] = []
        for row, slot in enumerate(plan.slots.tolist()):
            if slot in self._row_of:
                tokens = slice(int(plan.query_indptr[row]), int(plan.query_indptr[row + 1]))
                forced.append(self._new_tokens(slot, plan.token_ids[tokens], plan.positions[tokens]))
                rows.append(np.full(len(forced[-1]), self._row_of[slot], dtype=np.int32))
        if any(map(len, rows)):
            places = self._staging.upload([np.concatenate(rows), np.concatenate(forced)])
            ones = torch.ones_like(places[0])
            self._counts.index_put_((places[0].long(), places[1].long()), ones, accumulate=True)

    def _new_tokens(self, slot: int, token_ids: Int32Array, positions: Int32Array) -> Int32Array:
        """Those that were not counted yet; they pass for counted."""
        new = positions >= self._counted[slot]
        if new.any():
            self._counted[slot] = int(positions[-1]) + 1
        return self._known(token_ids[new & (token_ids != FROM_SLOT)])

    def count_sampled(self, slots: Int32Array, seq_lens: Int32Array, token_ids: Tensor) -> None:
        """Count one token for each sampled slot.

        Args:
            slots: [S], slots that were sampled; those without penalties are passed over.
            seq_lens: [S], tokens of context before the sampled one.
            token_ids: [S] int32 or int64 on the device; negative where sampling failed.
        """
        sampled = self.rows_of(slots)
        if not sampled:
            return
        for index in sampled:
            self._counted[int(slots[index])] = int(seq_lens[index]) + 1
        tokens = token_ids[self._upload(sampled)].long().clamp(min=0)
        self._counts[self._counted_in(slots, sampled), tokens] += 1

    def rows_of(self, slots: Int32Array) -> list[int]:
        """The indices into `slots` of those that have penalties."""
        if not self._row_of:
            return []
        return [index for index, slot in enumerate(slots.tolist()) if slot in self._row_of]

    def apply(self, scores: Tensor, slots: Int32Array) -> None:
        """Penalise the rows of `scores`, [S, V] float32, whose slots have penalties; in place.

        The repetition penalty comes first (as in transformers: tokens of prompt and output; positive logits are
        divided, negative ones multiplied), then OpenAI's frequency and presence penalties (tokens of the output).
        """
        penalised = self.rows_of(slots)
        if not penalised:
            return
        index, rows = self._upload(penalised), self._counted_in(slots, penalised)
        repetition, frequency, presence = self._coefficients[rows].T[:, :, None]
        counts = self._counts[rows]
        generated = counts > 0
        plain = scores[index]
        repeated = torch.where(plain > 0, plain / repetition, plain * repetition)
        penalty = frequency * counts + presence * generated
        scores[index] = torch.where(generated | self._in_prompt[rows], repeated, plain) - penalty

    def _counted_in(self, slots: Int32Array, chosen: list[int]) -> Tensor:
        return self._upload([self._row_of[int(slots[index])] for index in chosen])

    def _upload(self, integers: npt.ArrayLike) -> Tensor:
        return self._staging.upload([np.asarray(integers, dtype=np.int32)])[0]

    def check_invariants(self) -> None:
        """Raise AssertionError unless every row is free or owned by exactly one slot."""
        owned = sorted([*self._row_of.values(), *self._free])
        if owned != list(range(len(self._counts))) or self._row_of.keys() != self._counted.keys():
            raise AssertionError(f"penalty rows {owned} do not cover 0 to {len(self._counts) - 1} once each")


def _groups(setups: Sequence[SlotSetup]) -> Iterator[list[SlotSetup]]:
    """The same in order, a bounded number of tokens together."""
    group: list[SlotSetup] = []
    tokens = 0
    for setup in setups:
        tokens += len(setup.prompt_ids) + len(setup.output_ids)
        if group and tokens > _LOADED_AT_ONCE:
            yield group
            group, tokens = [], len(setup.prompt_ids) + len(setup.output_ids)
        group.append(setup)
    if group:
        yield group


def _with_rows(tensor: Tensor, added: int) -> Tensor:
    return torch.cat((tensor, tensor.new_zeros((added, tensor.shape[1]))))
