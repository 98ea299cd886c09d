"""Steps of few tokens, recorded as CUDA graphs when their size first occurs, and replayed without the host's part.

A step of up to a thousand tokens takes the device a few milliseconds, and the host as long to launch its several
hundred kernels one by one. Two kinds of step are recorded, each for a padded number of tokens:

- *Decodes*, one token a row: the whole step, attention and logits included, is one graph.
- *Mixed* steps, with rows of any length: all but attention, whose launch depends on the rows; a graph from each layer's
  attention to the next one's.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor

from .attention import AttentionBackend, AttentionPlan, PlannedAttention, StepAttention
from .batch import StepPlan
from .kv_storage import KVStorage
from .layers.placement import Placement
from .models import CausalLM, ModelConfig
from .recorded_attention import FirstTokens, Piece, Pieces, padded_plan
from .step_inputs import InputBuffer, InputUpload
from .step_recorder import Replay, StepRecorder

MOST_TOKENS = 1024
"""Of a decode step that is recorded; of more, the device's part is long enough to hide the host's."""
MOST_MIXED_TOKENS = 512

_log = logging.getLogger(__name__)


def padded_size(tokens: int) -> int:
    """The number of tokens that a step is padded to: some eighth more, in steps that matrix products like."""
    for most, step in ((8, 0), (64, 8), (256, 16), (512, 32)):
        if tokens <= most:
            return _rounded_up(tokens, step) if step else 1 << (tokens - 1).bit_length()
    return _rounded_up(tokens, 64)


def padded_sizes(most: int) -> list[int]:
    """All numbers of tokens that steps of at most so many are padded to."""
    return sorted({padded_size(tokens) for tokens in range(1, most + 1)})


def decode_sizes(max_slots: int) -> list[int]:
    """Rows of the decode steps that may be recorded."""
    return padded_sizes(min(MOST_TOKENS, max_slots))


def _rounded_up(number: int, step: int) -> int:
    return -(-number // step) * step


def recorded_bytes(config: ModelConfig, placement: Placement, max_slots: int) -> int:
    """Memory that the largest recorded step works in: logits of its rows, or what an MLP has at once, beside states."""
    rows = padded_size(min(MOST_TOKENS, max_slots))
    logits = config.vocab_size * (1 if config.logit_softcap is None and config.logit_divisor == 1 else 3)
    widths = 3 * config.intermediate_size + 4 * config.hidden_size
    return max(rows * (logits + config.hidden_size), max(rows, MOST_MIXED_TOKENS) * widths) * placement.dtype.itemsize


def kept_bytes(config: ModelConfig, placement: Placement) -> int:
    """Memory that all recorded steps keep outside of what they work in: of each mixed step attention's output.

    What attention itself keeps for them is no part of it.
    """
    widest = config.num_heads * config.head_dim * placement.dtype.itemsize
    return sum(padded_sizes(MOST_MIXED_TOKENS)) * widest


class StepGraphs:
    """The recorded steps of one model.

    A size that cannot be recorded is not tried again: its steps are launched like all others.

    Args:
        model, attention, storage: what a step passes through.
        last_tokens: [max_slots], the tokens last sampled.
        upload: brings plans to the device.
        context_length: most tokens of a row's context.
        recorder: of the device.
    """

    def __init__(
        self,
        model: CausalLM,
        attention: AttentionBackend,
        storage: KVStorage,
        last_tokens: Tensor,
        upload: InputUpload,
        context_length: int,
        recorder: StepRecorder,
    ) -> None:
        self.attention = attention
        self.storage = storage
        self.upload = upload
        self.recorder = recorder
        self._model = model
        self._last_tokens = last_tokens
        self._context_length = min(context_length, storage.num_pages * storage.page_size)
        self._graphs: dict[tuple[type[_Graph], int], _Graph | None] = {}
        self._told = False
        with suppress(torch.OutOfMemoryError):  # the largest first; without room for it there may be some for others
            attention.decode_graph(padded_size(min(MOST_TOKENS, len(last_tokens))), self._context_length)

    def decode(self, plan: StepPlan) -> Tensor | None:
        """Logits [R, vocab_size] of a step whose rows have one token each; None where it cannot be replayed.

        They are to be read before the next step is launched.
        """
        rows = len(plan.seq_lens)
        if not 0 < rows == len(plan.token_ids) <= min(MOST_TOKENS, len(self._last_tokens)):
            return None  # limbs of trees may be more rows than there are slots
        return self._replayed(_DecodeGraph, plan)

    def mixed(self, plan: StepPlan) -> Tensor | None:
        """Last hidden states [T, hidden_size] of a step with rows of any length; None where it cannot be replayed.

        They are to be read before the next step is launched.
        """
        if not 0 < len(plan.token_ids) <= MOST_MIXED_TOKENS:
            return None
        return self._replayed(_MixedGraph, plan)

    def _replayed(self, kind: type[_Graph], plan: StepPlan) -> Tensor | None:
        tokens = len(plan.token_ids)
        key = kind, padded_size(tokens)
        if key not in self._graphs:
            self._graphs[key] = self._recorded(kind, plan)
        graph = self._graphs[key]
        if graph is None:
            return None
        graph.prepare(plan)
        return graph.replay(tokens)[:tokens]

    def _recorded(self, kind: type[_Graph], plan: StepPlan) -> _Graph | None:
        """Recorded while a step is launched, whose rows it is tried with."""
        size = padded_size(len(plan.token_ids))
        try:
            graph = kind.of(self, size)
            if graph is not None:
                graph.prepare(plan)
                graph.try_out(len(plan.token_ids))
                with self.recorder.aside():
                    graph.record()
        except Exception as error:  # whatever it is: the step can still be launched, and shows errors of its own
            level = logging.DEBUG if self._told else logging.WARNING
            self._told = True
            _log.log(
                level,
                "steps of %d tokens could not be recorded as a CUDA graph, and are launched kernel by kernel: %s",
                size,
                error,
            )
            return None
        return graph

    def decode_attention(self, size: int) -> PlannedAttention | None:
        """Attention of decode steps of this size; None where it cannot be recorded."""
        return self.attention.decode_graph(size, self._context_length)

    def states(self, buffer: InputBuffer, attention: StepAttention) -> Tensor:
        """[T, hidden_size] of a buffer's tokens."""
        inputs = buffer.inputs
        return self._model.hidden(inputs.known_tokens(self._last_tokens), inputs.positions, attention)

    def logits(self, buffer: InputBuffer, attention: StepAttention) -> Tensor:
        """[T, vocab_size] of a buffer's tokens."""
        return self._model.logits(self.states(buffer, attention))


class _Graph(Protocol):
    """A step of a fixed size. `prepare`, `try_out` and `record` come once; then `prepare` before each `replay`."""

    @classmethod
    def of(cls, steps: StepGraphs, size: int) -> _Graph | None:
        """None where steps of this kind cannot be recorded."""

    def prepare(self, plan: StepPlan) -> None:
        """Bring a step to where the graph reads it."""

    def try_out(self, tokens: int) -> None:
        """Compute the step, of which `tokens` are real: what is compiled or allocated once must not be recorded."""

    def record(self) -> None:
        """Record the step. Only inside `StepRecorder.aside`."""

    def replay(self, tokens: int) -> Tensor:
        """What the step computes for each of its tokens."""


class _DecodeGraph:
    """A step of `size` rows of one token each: see `_Graph`."""

    def __init__(self, steps: StepGraphs, size: int, attention: PlannedAttention) -> None:
        self._steps = steps
        self._size = size
        self._attention = attention
        self._buffer = InputBuffer(size, steps.storage.device)
        self._logits = torch.empty(0)
        self._launch: Replay = _nothing

    @classmethod
    def of(cls, steps: StepGraphs, size: int) -> _DecodeGraph | None:
        attention = steps.decode_attention(size)
        return None if attention is None else cls(steps, size, attention)

    def prepare(self, plan: StepPlan) -> None:
        self._attention.plan(padded_plan(AttentionPlan.of(plan), self._size, self._steps.storage))
        self._steps.upload.into(self._buffer, plan)

    def try_out(self, tokens: int) -> None:
        self._steps.logits(self._buffer, self._attention)

    def record(self) -> None:
        recorder = self._steps.recorder
        recorder.begin()
        logits = self._steps.logits(self._buffer, self._attention)
        self._launch = recorder.end()
        self._logits = recorder.lent(logits)

    def replay(self, tokens: int) -> Tensor:
        """[size, vocab_size]."""
        self._launch()
        return self._logits


class _MixedGraph:
    """A step of `size` tokens, in pieces between which attention is computed on the step's own rows: see `_Graph`."""

    def __init__(self, steps: StepGraphs, size: int) -> None:
        self._steps = steps
        self._buffer = InputBuffer(size, steps.storage.device)
        self._pieces: list[Piece] = []
        self._states = torch.empty(0)

    @classmethod
    def of(cls, steps: StepGraphs, size: int) -> _MixedGraph:
        return cls(steps, size)

    def prepare(self, plan: StepPlan) -> None:
        self._steps.attention.plan(AttentionPlan.of(plan))
        self._steps.upload.into(self._buffer, plan)

    def try_out(self, tokens: int) -> None:
        self._steps.states(self._buffer, FirstTokens(self._steps.attention, tokens))

    def record(self) -> None:
        recorder = self._steps.recorder
        recorder.begin()
        pieces = Pieces(self._steps.attention, recorder)
        states = self._steps.states(self._buffer, pieces)
        self._pieces = pieces.end()
        self._states = recorder.lent(states)

    def replay(self, tokens: int) -> Tensor:
        """[size, hidden_size]."""
        for piece in self._pieces:
            piece(tokens)
        return self._states


def _nothing() -> None:
    """What is launched before anything was recorded."""
