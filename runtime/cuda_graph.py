"""Steps of few tokens, recorded as CUDA graphs when their size first occurs, and replayed without the host's part.

A step of up to a thousand tokens takes the device a few milliseconds, and the host as long to launch its several
hundred kernels one by one. Two kinds of step are recorded, each for a padded number of tokens:

- *Decodes*, one token a row: the whole step, attention and logits included, is one graph.
- *Mixed* steps, with rows of any length: all but attention, whose launch depends on the rows; a graph from each layer's
  attention to the next one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .attention import AttentionBackend, AttentionPlan
from .batch import Int32Array, StepPlan
from .kv_storage import KVStorage
from .layers.attention import RadixAttention
from .layers.rotary import Angles
from .models import CausalLM
from .step_inputs import InputBuffer, InputUpload

MOST_TOKENS = 1024
"""Of a decode step that is recorded; of more, the device's part is long enough to hide the host's."""
MOST_MIXED_TOKENS = 512


def padded_size(tokens: int) -> int:
    """The number of tokens that a step is padded to: some eighth more, in steps that matrix products like."""
    for most, step in ((8, 0), (64, 8), (256, 16), (512, 32)):
        if tokens <= most:
            return _rounded_up(tokens, step) if step else 1 << (tokens - 1).bit_length()
    return _rounded_up(tokens, 64)


def _rounded_up(number: int, step: int) -> int:
    return -(-number // step) * step


class StepGraphs:
    """The recorded steps of one model.

    Args:
        model, attention, storage: what a step passes through.
        last_tokens: [max_slots], the tokens last sampled.
        upload: brings plans to the device.
        context_length: most tokens of a row's context.
    """

    def __init__(
        self,
        model: CausalLM,
        attention: AttentionBackend,
        storage: KVStorage,
        last_tokens: Tensor,
        upload: InputUpload,
        context_length: int,
    ) -> None:
        self.attention = attention
        self.storage = storage
        self.upload = upload
        self._model = model
        self._last_tokens = last_tokens
        self._context_length = context_length
        self._recording = _Recording()
        self._outputs = torch.empty(0)
        self._decodes: dict[int, _DecodeGraph | None] = {}
        self._mixed: dict[int, _MixedGraph] = {}

    def decode(self, plan: StepPlan) -> Tensor | None:
        """Logits [R, vocab_size] of a step whose rows have one token each; None where it cannot be replayed."""
        rows = len(plan.seq_lens)
        if rows != len(plan.token_ids) or rows > MOST_TOKENS:
            return None
        size = padded_size(rows)
        if size not in self._decodes:
            attention = self.attention.decode_graph(size, self._context_length)
            self._decodes[size] = None if attention is None else _DecodeGraph(self, size, attention, self._recording)
        graph = self._decodes[size]
        return None if graph is None else graph.run(plan)[:rows]

    def mixed(self, plan: StepPlan) -> Tensor | None:
        """Last hidden states [T, hidden_size] of a step with rows of any length; None where it cannot be replayed."""
        tokens = len(plan.token_ids)
        if tokens > MOST_MIXED_TOKENS:
            return None
        size = padded_size(tokens)
        if size not in self._mixed:
            self._mixed[size] = _MixedGraph(self, size, self._recording)
        return self._mixed[size].run(plan)[:tokens]

    def states(self, buffer: InputBuffer, attention: AttentionBackend) -> Tensor:
        """[T, hidden_size] of a buffer's tokens."""
        inputs = buffer.inputs
        return self._model.hidden(inputs.known_tokens(self._last_tokens), inputs.positions, attention)

    def outputs(self, size: int) -> Tensor:
        """Where decode steps of so many rows leave their logits: one memory for all of them, read before the next step.

        Were it each graph's own, those of all sizes would take gigabytes.
        """
        if len(self._outputs) < size:
            shape = (max(size, 2 * len(self._outputs)), self._model.config.vocab_size)
            placement = self._model.placement
            self._outputs = torch.empty(shape, dtype=placement.dtype, device=placement.device)
        return self._outputs[:size]

    def logits(self, buffer: InputBuffer, attention: AttentionBackend) -> Tensor:
        """[T, vocab_size] of a buffer's tokens."""
        return self._model.logits(self.states(buffer, attention))


class _Recording:
    """What all graphs share: the stream on which they are recorded, and their memory."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Work that is recorded, and what must come before it."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def begin(self) -> torch.cuda.CUDAGraph:
        """A graph of what is launched from here on. All graphs share memory: no two ever run at once."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        return graph


class _DecodeGraph:
    """A step of `size` rows of one token each."""

    def __init__(self, step: StepGraphs, size: int, attention: AttentionBackend, recording: _Recording) -> None:
        self._step = step
        self._size = size
        self._attention = attention
        self._recording = recording
        self._buffer = InputBuffer(size, step.storage.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits = torch.empty(0)

    def run(self, plan: StepPlan) -> Tensor:
        """Logits [size, vocab_size], to be read before the next step is launched."""
        self._attention.plan(padded_plan(AttentionPlan.of(plan), self._size, self._step.storage))
        self._step.upload.into(self._buffer, plan)
        if self._graph is None:
            self._graph = self._record()
        self._graph.replay()
        return self._logits

    def _record(self) -> torch.cuda.CUDAGraph:
        with self._recording.stream():
            self._step.logits(self._buffer, self._attention)  # what is compiled or allocated once must not be recorded
            self._logits = self._step.outputs(self._size)  # outside of what graphs share, which the next may overwrite
            graph = self._recording.begin()
            self._logits.copy_(self._step.logits(self._buffer, self._attention))
            graph.capture_end()
        return graph


class _MixedGraph:
    """A step of `size` tokens, in pieces between which attention is computed on the step's own rows."""

    def __init__(self, step: StepGraphs, size: int, recording: _Recording) -> None:
        self._step = step
        self._recording = recording
        self._buffer = InputBuffer(size, step.storage.device)
        self._pieces: list[Callable[[int], None]] = []
        self._states = torch.empty(0)

    def run(self, plan: StepPlan) -> Tensor:
        """Last hidden states [size, hidden_size], to be read before the next step is launched."""
        tokens = len(plan.token_ids)
        self._step.attention.plan(AttentionPlan.of(plan))
        self._step.upload.into(self._buffer, plan)
        if not self._pieces:
            self._record(tokens)
        for piece in self._pieces:
            piece(tokens)
        return self._states

    def _record(self, tokens: int) -> None:
        with self._recording.stream():
            self._step.states(self._buffer, _FirstTokens(self._step.attention, tokens))  # compiles what must be
            recorder = _Recorder(self._step.attention, self._recording)
            self._states = self._step.states(self._buffer, recorder)
            self._pieces = recorder.finish()


class _StandIn:
    """Stands where the model expects an attention backend, in front of one that was planned."""

    def __init__(self, attention: AttentionBackend) -> None:
        self._attention = attention

    def plan(self, batch: AttentionPlan) -> None:
        """Nothing: see above."""

    def decode_graph(self, rows: int, context_length: int) -> AttentionBackend | None:
        return None


class _FirstTokens(_StandIn):
    """Attention for the first tokens of a padded step; the others get zeros."""

    def __init__(self, attention: AttentionBackend, tokens: int) -> None:
        super().__init__(attention)
        self._tokens = tokens

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        out = qkv.new_zeros(len(qkv), layer.num_heads, layer.head_dim)
        _attend_first(self._attention, self._tokens, qkv, layer, angles, out)
        return out


class _Recorder(_StandIn):
    """Ends a graph at every layer's attention, which stays outside, and begins the next one."""

    def __init__(self, attention: AttentionBackend, recording: _Recording) -> None:
        super().__init__(attention)
        self._recording = recording
        self._pieces: list[Callable[[int], None]] = []
        self._out: dict[tuple[int, ...], Tensor] = {}  # by shape: a layer reads it before the next one's is written
        self._graph = recording.begin()

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        self._end_piece()
        shape = (len(qkv), layer.num_heads, layer.head_dim)
        if shape not in self._out:
            self._out[shape] = qkv.new_zeros(shape)
        out = self._out[shape]

        def attend(tokens: int) -> None:
            _attend_first(self._attention, tokens, qkv, layer, angles, out)

        self._pieces.append(attend)
        self._graph = self._recording.begin()
        return out

    def finish(self) -> list[Callable[[int], None]]:
        """The whole step, piece by piece; each is told how many tokens are real."""
        self._end_piece()
        return self._pieces

    def _end_piece(self) -> None:
        self._graph.capture_end()
        graph = self._graph

        def replay(tokens: int) -> None:
            graph.replay()

        self._pieces.append(replay)


def _attend_first(
    attention: AttentionBackend, tokens: int, qkv: Tensor, layer: RadixAttention, angles: Angles | None, out: Tensor
) -> None:
    """Attention of the first tokens of qkv, into the first rows of out."""
    turned = None if angles is None else (angles[0][:tokens], angles[1][:tokens])
    out[:tokens].copy_(attention.run(qkv[:tokens], layer, turned))


def padded_plan(plan: AttentionPlan, rows: int, storage: KVStorage) -> AttentionPlan:
    """A plan of decodes with more rows, each of one token on the storage's spare page."""
    more = rows - len(plan.seq_lens)
    if not more:
        return plan
    return replace(
        plan,
        kv_slots=_extended(plan.kv_slots, np.full(more, storage.spare_page * storage.page_size)),
        query_indptr=np.arange(rows + 1, dtype=np.int32),
        page_indptr=_extended(plan.page_indptr, plan.page_indptr[-1] + np.arange(1, more + 1)),
        page_ids=_extended(plan.page_ids, np.full(more, storage.spare_page)),
        seq_lens=_extended(plan.seq_lens, np.ones(more)),
        num_decodes=rows,
    )


def _extended(array: Int32Array, more: npt.NDArray[np.integer | np.floating]) -> Int32Array:
    return np.concatenate((array, more.astype(np.int32)))
