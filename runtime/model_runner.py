"""Executes steps: token ids through the model to sampled tokens and scores, on one device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .attention import AttentionBackend, AttentionPlan, attention_backend, compiled_attention
from .batch import Int32Array, StepPlan
from .config import EngineConfig, Sizes
from .cuda_graph import StepGraphs, recorded_bytes
from .device_memory import readable
from .errors import RequestError
from .kv_storage import KVStorage
from .layers.operators import operators_for
from .layers.placement import Collective, Placement
from .mask_table import MaskTable
from .memory_reserves import PARTS_A_PRODUCT
from .models import CausalLM, ModelConfig
from .penalties import PenaltyCounts
from .pinned_staging import PinnedStaging
from .placing import current_device, place, sizes_on
from .pool_sizing import sized_storage
from .runner_step import DeviceTimer, RunnerStep, Scores
from .sampler import Sampler
from .step_inputs import InputUpload
from .step_recorder import CudaStepRecorder, StepRecorder
from .token_choice import likeliest
from .token_chooser import LOGITS_AT_ONCE
from .weights import open_checkpoint


class ModelRunner:
    """Runs a model's steps in the order they are launched. See `palmette.runtime.batch.Runner`.

    On a GPU `launch` only enqueues work; the handle's `result` waits for it.

    Attributes:
        model, storage, sampler: what a step passes through.
        device: that computes.
        num_pages, page_size: of the KV storage.
    """

    def __init__(
        self,
        model: CausalLM,
        storage: KVStorage,
        sampler: Sampler,
        *,
        attention: AttentionBackend | None = None,
        context_length: int | None = None,
        recorder: StepRecorder | None = None,
    ) -> None:
        """Put together what a step passes through.

        Args:
            attention: None picks the device's best.
            context_length: most tokens of prompt and output, where steps are to be recorded as CUDA graphs, of a model
                that only launches.
            recorder: of those steps; None is the GPU's.
        """
        self.model = model
        self.storage = storage
        self.sampler = sampler
        self._attention = attention or attention_backend(None, storage)
        self.device = model.placement.device
        self._use_thread = operators_for(model.placement).use_thread
        self._staging = PinnedStaging(self.device)
        self._inputs = InputUpload(self._staging)
        self._graphs: StepGraphs | None = None
        if context_length is not None and model.launches_only:
            self._graphs = self._step_graphs(context_length, recorder)

    @classmethod
    def load(
        cls,
        path: Path,
        settings: EngineConfig,
        *,
        rank: int = 0,
        world: int = 1,
        collective: Collective | None = None,
        valid_vocab: int | None = None,
    ) -> ModelRunner:
        """Load the model in a folder or GGUF file and give it KV storage as `settings` say.

        Args:
            rank, world, collective: this runner's shard, and how it talks to the other ranks.
            valid_vocab: how many tokens the tokenizer has, where the logits are wider.

        Raises:
            ModelLoadError: the model cannot be loaded; names the file and the tensor.
            RequestError: a setting does not fit the device.
        """
        checkpoint = open_checkpoint(path, settings.model_impl)
        placement = place(checkpoint, settings, rank=rank, world=world, collective=collective)
        with current_device(placement.device):
            model = checkpoint.load(placement, load_format=settings.load_format, seed=settings.seed or 0)
            return cls._of_model(model, settings, valid_vocab)

    @classmethod
    def _of_model(cls, model: CausalLM, settings: EngineConfig, valid_vocab: int | None) -> ModelRunner:
        """Give a loaded model all that it needs to run."""
        placement, config = model.placement, model.config
        sizes = sizes_on(placement.device, settings)
        on_one_gpu = placement.device.type == "cuda" and placement.world == 1
        recorded = settings.cuda_graphs and on_one_gpu and model.launches_only
        sampler = _sampler(config, placement, settings, sizes, valid_vocab)  # it takes memory, the pool what is left
        storage = sized_storage(model, settings, sizes, recorded=recorded)
        with torch.inference_mode():
            attention = compiled_attention(settings.attention_backend, storage, model.attention_layers)
        context_length = settings.context_length or config.context_length
        return cls(model, storage, sampler, attention=attention, context_length=context_length if recorded else None)

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def device_type(self) -> str:
        """ "cpu" or "cuda"."""
        return self.device.type

    @property
    def num_pages(self) -> int:
        return self.storage.num_pages

    @property
    def page_size(self) -> int:
        return self.storage.page_size

    def sizes(self, settings: EngineConfig) -> Sizes:
        """What `settings` give on the runner's device."""
        return sizes_on(self.device, settings)

    def launch(self, plan: StepPlan) -> RunnerStep:
        """Begin the forward pass of a step."""
        self._use_thread()
        if (
            self.device.type == "cuda" and self.device.index is not None
        ):  # kernels and events go to the thread's current device, wherever the tensors are
            torch.cuda.set_device(self.device)
        timer = DeviceTimer(self.device)
        with torch.inference_mode():
            self.sampler.load(plan.setups)
            logits, scores = self._compute(plan)
        return RunnerStep(self.sampler, plan, logits, scores, timer)

    def _compute(self, plan: StepPlan) -> tuple[Tensor, Scores]:
        """The logits that are sampled and the scores that are asked for."""
        if self._graphs is not None and not len(plan.score_tokens):
            logits = self._graphs.decode(plan)
            if logits is not None:
                return self._rows(logits, plan.sample_rows), Scores.empty(0, 0, self.device)
        hidden = self._forward(plan)
        scores = self._score(hidden, plan)
        return self.model.logits(self._states(hidden, _last_tokens(plan))), scores

    def _forward(self, plan: StepPlan) -> _Hidden:
        """Hidden states of the tokens whose logits are sampled or scored."""
        states = None if self._graphs is None else self._graphs.mixed(plan)
        if states is not None:
            return _Hidden(np.arange(len(plan.token_ids), dtype=np.int32), states)
        self._attention.plan(AttentionPlan.of(plan))
        tokens = np.union1d(_last_tokens(plan), plan.score_tokens).astype(np.int32)
        inputs, wanted = self._inputs(plan, None if len(tokens) == len(plan.token_ids) else tokens)
        token_ids = inputs.known_tokens(self.sampler.last_tokens)
        return _Hidden(tokens, self.model.hidden(token_ids, inputs.positions, self._attention, wanted))

    def _score(self, hidden: _Hidden, plan: StepPlan) -> Scores:
        """Scores of the plan's score_targets, a bounded number of logits at a time."""
        scores = Scores.empty(len(plan.score_tokens), int(plan.score_top.max(initial=0)), self.device)
        tokens, logits_of = np.unique(plan.score_tokens, return_inverse=True)  # one may score several
        for first, logits in self._logits_in_parts(hidden, tokens):
            total = logits.logsumexp(dim=1)
            places = np.flatnonzero((logits_of >= first) & (logits_of < first + len(logits)))
            arrays = (logits_of[places] - first).astype(np.int32), plan.score_targets[places], places.astype(np.int32)
            rows, targets, at = (uploaded.long() for uploaded in self._staging.upload(arrays))
            scores.logprobs[at] = logits[rows, targets] - total[rows]
            self._score_top(logits, total, plan.score_top[places], rows, at, scores)
        return scores

    def _logits_in_parts(self, hidden: _Hidden, tokens: Int32Array) -> Iterator[tuple[int, Tensor]]:
        """Logits [n, vocab_size] float32 of some of these tokens after the others, and the index of the first."""
        a_part = max(1, LOGITS_AT_ONCE // self.config.vocab_size)
        a_product = PARTS_A_PRODUCT * a_part
        for start in range(0, len(tokens), a_product):
            logits = self.model.logits(self._states(hidden, tokens[start : start + a_product]))
            for first in range(0, len(logits), a_part):
                yield start + first, logits[first : first + a_part].float()

    def _score_top(
        self, logits: Tensor, total: Tensor, counts: Int32Array, rows: Tensor, at: Tensor, scores: Scores
    ) -> None:
        """Fill in the likeliest tokens of those scores that ask for some.

        Args:
            counts: [N], how many each asks for.
            rows, at: [N], the row of the logits of each, and its place in `scores`.
        """
        asking = np.flatnonzero(counts)
        if not len(asking):
            return
        if len(asking) < len(counts):
            asked = self._upload(asking.astype(np.int32))
            rows, at = rows[asked], at[asked]
        most = min(int(counts.max()), self.sampler.valid_vocab)
        ids, values = likeliest(logits[rows, : self.sampler.valid_vocab], most)
        scores.top_ids[at, :most] = ids.int()
        scores.top_logprobs[at, :most] = values - total[rows, None]

    def _states(self, hidden: _Hidden, tokens: Int32Array) -> Tensor:
        """States [N, hidden_size] of these tokens, which are in rising order."""
        return self._rows(hidden.states, np.searchsorted(hidden.tokens, tokens).astype(np.int32))

    def _rows(self, tensor: Tensor, rows: Int32Array) -> Tensor:
        """The rows of a tensor [N, ...] that are named, each once and in rising order."""
        return tensor if len(rows) == len(tensor) else tensor.index_select(0, self._upload(rows))

    def _upload(self, array: npt.NDArray[np.int32]) -> Tensor:
        return self._staging.upload([array])[0]

    def _step_graphs(self, context_length: int, recorder: StepRecorder | None) -> StepGraphs:
        last_tokens = self.sampler.last_tokens
        if recorder is None:
            most_bytes = recorded_bytes(self.config, self.model.placement, len(last_tokens))
            recorder = CudaStepRecorder(self.device, most_bytes)
        return StepGraphs(
            self.model, self._attention, self.storage, last_tokens, self._inputs, context_length, recorder
        )


@dataclass(frozen=True, slots=True)
class _Hidden:
    """Last hidden states [W, hidden_size] of a step's tokens [W], which are flat indices in rising order."""

    tokens: Int32Array
    states: Tensor


def _last_tokens(plan: StepPlan) -> Int32Array:
    """[S], flat index of the last token of each row that is sampled."""
    return plan.query_indptr[1:][plan.sample_rows] - 1


def _sampler(
    config: ModelConfig, placement: Placement, settings: EngineConfig, sizes: Sizes, valid_vocab: int | None
) -> Sampler:
    """The sampler of a model, ready.

    Raises:
        RequestError: there is no memory for its tables.
    """
    valid = None if valid_vocab is None else min(valid_vocab, config.vocab_size)
    slots, device = sizes.max_running_requests, placement.device
    try:
        sampler = Sampler(config.vocab_size, slots, settings.mask_rows, device, valid_vocab=valid)
    except torch.OutOfMemoryError as error:
        penalties = readable(PenaltyCounts.bytes_of(config.vocab_size, slots))
        masks = readable(MaskTable.bytes_of(settings.mask_rows, config.vocab_size))
        raise RequestError(
            f"{device} has no memory beside the weights for the tables of sampling, {penalties} for the penalties of "
            f"{slots} requests and {masks} for {settings.mask_rows} grammar masks: lower max_running_requests or "
            f"mask_rows ({error})"
        ) from error
    sampler.warm_up(placement.dtype)
    return sampler
