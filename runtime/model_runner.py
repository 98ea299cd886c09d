"""Executes steps: token ids through the model to sampled tokens and scores, on one device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from .attention import AttentionBackend, AttentionPlan, CompiledAttention, attention_backend
from .batch import Int32Array, StepPlan
from .config import EngineConfig, Sizes
from .cuda_graph import StepGraphs
from .device_memory import pool_bytes
from .errors import ModelLoadError, RequestError
from .kv_storage import KVStorage, pages_for_memory
from .layers.attention import RadixAttention
from .layers.operators import operators_for
from .layers.placement import Alone, Collective, Placement
from .models import CausalLM, ModelConfig
from .pinned_staging import PinnedStaging
from .runner_step import DeviceTimer, RunnerStep, Scores
from .sampler import Sampler
from .step_inputs import InputUpload
from .token_choice import likeliest
from .weights import Checkpoint, open_checkpoint

_DEVICES = ("cpu", "cuda")

_SCORED_LOGITS = 1 << 23
"""Logits made at once for scoring (32 MB in float32)."""


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
    ) -> None:
        """Put together what a step passes through.

        Args:
            attention: None picks the device's best.
            context_length: most tokens of prompt and output, where steps are to be recorded as CUDA graphs.
        """
        self.model = model
        self.storage = storage
        self.sampler = sampler
        self._attention = attention or attention_backend(None, storage)
        self.device = model.placement.device
        self._use_thread = operators_for(model.placement).use_thread
        self._staging = PinnedStaging(self.device)
        self._inputs = InputUpload(self._staging)
        self._graphs = None if context_length is None else self._step_graphs(context_length)

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
        model = checkpoint.load(placement, load_format=settings.load_format, seed=settings.seed or 0)
        config = model.config
        sizes = settings.sizes_for(placement.device.type)
        storage = _kv_storage(model, settings, sizes)
        sampler = Sampler(
            config.vocab_size,
            sizes.max_running_requests,
            settings.mask_rows,
            placement.device,
            valid_vocab=None if valid_vocab is None else min(valid_vocab, config.vocab_size),
        )
        sampler.warm_up(placement.dtype)
        attention = attention_backend(settings.attention_backend, storage)
        _compile(attention, model)
        graphs = settings.cuda_graphs and placement.device.type == "cuda" and placement.world == 1
        context_length = settings.context_length or config.context_length
        return cls(model, storage, sampler, attention=attention, context_length=context_length if graphs else None)

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def num_pages(self) -> int:
        return self.storage.num_pages

    @property
    def page_size(self) -> int:
        return self.storage.page_size

    def launch(self, plan: StepPlan) -> RunnerStep:
        """Begin the forward pass of a step."""
        self._use_thread()
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
        most = max(1, _SCORED_LOGITS // self.config.vocab_size)
        scores = Scores.empty(len(plan.score_tokens), int(plan.score_top.max(initial=0)), self.device)
        for first in range(0, len(plan.score_tokens), most):
            part = slice(first, first + most)
            logits = self.model.logits(self._states(hidden, plan.score_tokens[part])).float()
            total = logits.logsumexp(dim=1)
            targets = self._upload(plan.score_targets[part]).long()
            scores.logprobs[part] = logits.gather(1, targets[:, None]).squeeze(1) - total
            self._score_top(logits, total, plan.score_top[part], scores.rows(part))
        return scores

    def _score_top(self, logits: Tensor, total: Tensor, counts: Int32Array, scores: Scores) -> None:
        """Fill in the likeliest tokens of the rows that ask for some."""
        asking = np.flatnonzero(counts)
        if not len(asking):
            return
        rows = self._upload(asking.astype(np.int32))
        most = min(int(counts.max()), self.sampler.valid_vocab)
        ids, values = likeliest(logits[rows, : self.sampler.valid_vocab], most)
        scores.top_ids[rows, :most] = ids.int()
        scores.top_logprobs[rows, :most] = values - total[rows, None]

    def _states(self, hidden: _Hidden, tokens: Int32Array) -> Tensor:
        """States [N, hidden_size] of these tokens."""
        return self._rows(hidden.states, np.searchsorted(hidden.tokens, tokens).astype(np.int32))

    def _rows(self, tensor: Tensor, rows: Int32Array) -> Tensor:
        """The rows of a tensor [N, ...] that are named, in rising order."""
        return tensor if len(rows) == len(tensor) else tensor.index_select(0, self._upload(rows))

    def _upload(self, array: npt.NDArray[np.int32]) -> Tensor:
        return self._staging.upload([array])[0]

    def _step_graphs(self, context_length: int) -> StepGraphs | None:
        if not self.model.launches_only:
            return None
        return StepGraphs(
            self.model, self._attention, self.storage, self.sampler.last_tokens, self._inputs, context_length
        )


@dataclass(frozen=True, slots=True)
class _Hidden:
    """Last hidden states [W, hidden_size] of a step's tokens [W], which are flat indices in rising order."""

    tokens: Int32Array
    states: Tensor


def _last_tokens(plan: StepPlan) -> Int32Array:
    """[S], flat index of the last token of each row that is sampled."""
    return plan.query_indptr[1:][plan.sample_rows] - 1


def _compile(attention: AttentionBackend, model: CausalLM) -> None:
    """Have what the model's attention needs compiled now, so that no request waits for it."""
    if isinstance(attention, CompiledAttention) and isinstance(model, nn.Module):
        with torch.inference_mode():
            attention.warm_up([layer for layer in model.modules() if isinstance(layer, RadixAttention)])


# -- where a model goes, and how much of the KV cache fits ------------------------------------------------------------


def place(
    checkpoint: ModelConfig | Checkpoint,
    settings: EngineConfig,
    *,
    rank: int = 0,
    world: int = 1,
    collective: Collective | None = None,
) -> Placement:
    """The placement that `settings` ask for.

    Raises:
        RequestError: the device does not exist.
        ModelLoadError: the checkpoint's own dtype is asked for and is not a float type that is known.
    """
    device = _device(settings.device)
    name: str = settings.dtype
    if name == "auto":
        name = "float32" if device.type == "cpu" else checkpoint.dtype
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ModelLoadError(f"dtype={name!r} in config.json is not supported; give dtype='bfloat16' or 'float32'")
    return Placement(rank, world, collective or Alone(), dtype, device)


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RequestError(f"device={name!r} is not a device; known: cpu, cuda, cuda:0, ...") from None
    if device.type not in _DEVICES:
        raise RequestError(f"device={name!r} is not supported; known: {', '.join(_DEVICES)}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RequestError(f"device={name!r} is not there: {torch.cuda.device_count()} CUDA devices were found")
    return device


def _kv_storage(model: CausalLM, settings: EngineConfig, sizes: Sizes) -> KVStorage:
    """The KV pool that `settings` ask for.

    Raises:
        RequestError: it holds no page, or there is no memory for it.
    """
    num_pages = _num_pages(model, settings, sizes)
    try:
        return KVStorage(model.config, model.placement, num_pages=num_pages, page_size=sizes.page_size)
    except RuntimeError as error:  # torch's errors of memory
        raise RequestError(
            f"{model.placement.device} has no memory for a KV pool of {num_pages * sizes.page_size} tokens: lower "
            "max_total_tokens, memory_bytes or page_size"
        ) from error


def _num_pages(model: CausalLM, settings: EngineConfig, sizes: Sizes) -> int:
    """Pages of the KV pool, no more than all requests at their longest could use."""
    page_size = sizes.page_size
    if settings.max_total_tokens is not None:
        return -(-settings.max_total_tokens // page_size)
    memory = settings.memory_bytes or pool_bytes(
        model,
        mem_fraction=sizes.mem_fraction,
        step_tokens=sizes.chunk_size,
        sampled_rows=min(sizes.max_running_requests, sizes.chunk_size),
    )
    pages = pages_for_memory(model.config, model.placement, memory_bytes=memory, page_size=page_size)
    if pages < 1:
        raise RequestError(_too_small(settings, sizes, memory))
    longest = -(-(settings.context_length or model.config.context_length) // page_size)
    return min(pages, sizes.max_running_requests * longest)


def _too_small(settings: EngineConfig, sizes: Sizes, memory_bytes: int) -> str:
    given = f"memory_bytes={memory_bytes}"
    if settings.memory_bytes is None:
        given = f"the memory that mem_fraction={sizes.mem_fraction} leaves beside the weights and the largest step"
    return f"{given} holds not one page of {sizes.page_size} tokens of this model's KV cache"
