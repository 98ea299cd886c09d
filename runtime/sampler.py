"""From logits to one token a row: penalties, grammar mask, min_tokens, bias, filters, and the draw itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .batch import Int32Array, SlotSetup, StepMasks, StepPlan, UInt32Array
from .errors import EngineError
from .host_copies import HostCopies
from .kernels import serve
from .mask_table import MaskTable
from .penalties import PenaltyCounts
from .pinned_staging import PinnedStaging
from .sampled import Sampled
from .score_shaping import ScoreShaper
from .slot_options import SlotOptions
from .token_chooser import TokenChooser, TorchChooser


class Sampler:
    """Samples the rows of a step by the options of their request slots.

    All state is held by slot on the device, so the next step may be launched before this one's tokens are known on the
    host: `last_tokens` has them ([max_slots] int64), and penalty counts are kept where the tokens are.

    A row's token depends on its own logits, its slot and its output position alone, never on the other rows. Greedy
    rows take the likeliest token, the lowest id of equals. A bias cannot bring back a token that the mask excludes.
    """

    def __init__(
        self,
        vocab_size: int,
        max_slots: int,
        mask_rows: int,
        device: torch.device | str,
        *,
        valid_vocab: int | None = None,
        kernels: bool | None = None,
    ) -> None:
        """Make buffers for `max_slots` slots and `mask_rows` rows of the grammar mask table.

        Args:
            vocab_size: width of the logits.
            valid_vocab: how many tokens exist; ids from here to `vocab_size` are padding and never sampled.
            kernels: whether tokens are chosen by Triton kernels, not by torch; None: where they serve the device.
        """
        self._vocab_size = vocab_size
        self._valid = vocab_size if valid_vocab is None else valid_vocab
        if not 0 < self._valid <= vocab_size:
            raise EngineError(f"valid_vocab={self._valid} must lie between 1 and the {vocab_size} logits of the model")
        self._device = torch.device(device)
        self._staging = PinnedStaging(self._device)
        self._options = SlotOptions(self._valid, max_slots, self._device, self._staging)
        rows = 0 if self._device.type == "cpu" else max_slots
        self._penalties = PenaltyCounts(self._valid, self._device, self._staging, rows=rows)
        self._masks = MaskTable(mask_rows, vocab_size, self._device, self._staging)
        self.last_tokens = torch.zeros(max_slots, dtype=torch.int64, device=self._device)
        self.host_copies = HostCopies(self._device)
        if kernels is None:
            kernels = serve(self._device)
        self._chooser = self._make_chooser(kernels)

    def _make_chooser(self, kernels: bool) -> TokenChooser:
        shaper = ScoreShaper(self._options, self._penalties, self._masks, self._staging)
        if not kernels:
            return TorchChooser(self._options, shaper, self.last_tokens, self._valid, self._staging)
        from .kernel_chooser import KernelChooser  # imports Triton

        return KernelChooser(
            self._options, shaper, self._masks, self.last_tokens, self._vocab_size, self._valid, self._staging
        )

    def warm_up(self, dtype: torch.dtype) -> None:
        """Have the kernels for logits of this dtype ready, where there are any, before a request waits for them."""
        if not isinstance(self._chooser, TorchChooser):
            from .kernels.sampling_warm_up import warm_up

            warm_up(self._vocab_size, self._valid, dtype, self._device)

    @property
    def valid_vocab(self) -> int:
        """How many tokens exist; the logits from here on are padding."""
        return self._valid

    def load(self, setups: Sequence[SlotSetup]) -> None:
        """Replace all state of these slots.

        Raises:
            EngineError: a slot that does not exist, or a random request without a seed.
            RequestError: a logit bias on a token that the model does not have.
        """
        self._options.load(setups)
        self._penalties.load(setups)
        continued = [(setup.slot, setup.output_ids[-1]) for setup in setups if len(setup.output_ids)]
        if continued:
            slots, last = self._staging.upload(list(np.array(continued, dtype=np.int32).T))
            self.last_tokens[slots] = last.long()

    def write_masks(self, updates: tuple[Int32Array, UInt32Array] | None) -> None:
        """Write rows of the mask table: ids [U] and packed bits [U, ceil(vocab_size / 32)].

        Raises:
            EngineError: the bits are for another number of logits.
        """
        self._masks.write(updates)

    def sample(self, logits: Tensor, plan: StepPlan, masks: StepMasks | None = None) -> Sampled:
        """Sample the plan's `sample_rows` from `logits`, [S, vocab_size], which are left as they are, under `masks`.

        Does not wait for the device. A row whose logits hold NaN or infinity, or whose mask allows no token, is marked
        in the result and does not touch the others.

        Raises:
            EngineError: the logits' shape is wrong.
        """
        if logits.shape != (len(plan.sample_rows), self._vocab_size):
            raise EngineError(
                f"logits have shape {tuple(logits.shape)}, but the step samples {len(plan.sample_rows)} rows "
                f"of {self._vocab_size} tokens"
            )
        self._penalties.count_forced(plan)
        if masks is not None:
            self.write_masks(masks.updates)
        slots = plan.slots[plan.sample_rows]
        sampled = self._chooser.choose(logits, slots, plan.output_positions, None if masks is None else masks.rows)
        self._penalties.count_sampled(slots, plan.seq_lens[plan.sample_rows], sampled.token_ids)
        return sampled

    def check_invariants(self) -> None:
        """Raise AssertionError if the state by slot contradicts itself."""
        self._penalties.check_invariants()
        self._masks.check_invariants()
