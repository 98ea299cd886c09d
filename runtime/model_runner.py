"""Executes steps: token ids through the model to sampled tokens and scores, on one device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .attention import AttentionBackend, AttentionPlan, attention_backend
from .batch import FROM_SLOT, Int32Array, StepPlan
from .config import EngineConfig
from .errors import ModelLoadError, RequestError
from .kv_storage import KVStorage, pages_for_memory
from .layers.operators import operators_for
from .layers.placement import Alone, Collective, Placement
from .models import CausalLM, ModelConfig
from .runner_step import DeviceTimer, RunnerStep, Scores
from .sampler import Sampler
from .token_choice import likeliest
from .upload import upload
from .weights import Checkpoint, open_checkpoint

_KV_SHARE = {"cpu": 0.25, "cuda": 0.85}
"""Part of the free memory that the KV pool takes where nothing is said."""

_SCORED_LOGITS = 1 << 23
"""Logits made at once for scoring (32 MB in float32)."""


class ModelRunner:
    """Runs a model's steps in the order they are launched. See `palmette.runtime.batch.Runner`.

    On a GPU `launch` only enqueues work; the handle's `result` waits for it.

    Attributes:
        model, storage, sampler: what a step passes through.
        num_pages, page_size: of the KV storage.
    """

    def __init__(
        self, model: CausalLM, storage: KVStorage, sampler: Sampler, *, attention: AttentionBackend | None = None
    ) -> None:
        self.model = model
        self.storage = storage
        self.sampler = sampler
        self._attention = attention or attention_backend(None, storage)
        self._device = model.placement.device
        self._use_thread = operators_for(model.placement).use_thread

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
        storage = _kv_storage(config, placement, settings)
        sampler = Sampler(
            config.vocab_size,
            settings.max_running_requests,
            settings.mask_rows,
            placement.device,
            valid_vocab=None if valid_vocab is None else min(valid_vocab, config.vocab_size),
        )
        attention = attention_backend(settings.attention_backend, storage)
        return cls(model, storage, sampler, attention=attention)

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
        timer = DeviceTimer(self._device)
        with torch.inference_mode():
            self.sampler.load(plan.setups)
            hidden = self._forward(plan)
            scores = self._score(hidden, plan)
            logits = self.model.logits(self._states(hidden, _last_tokens(plan)))
        return RunnerStep(self.sampler, plan, logits, scores, timer)

    def _forward(self, plan: StepPlan) -> _Hidden:
        """Hidden states of the tokens whose logits are sampled or scored."""
        self._attention.plan(AttentionPlan.of(plan))
        tokens = np.union1d(_last_tokens(plan), plan.score_tokens).astype(np.int32)
        wanted = None if len(tokens) == len(plan.token_ids) else self._upload(tokens)
        states = self.model.hidden(self._token_ids(plan), self._upload(plan.positions), self._attention, wanted)
        return _Hidden(tokens, states)

    def _token_ids(self, plan: StepPlan) -> Tensor:
        """The step's token ids [T]; those that the host does not know come from the sampler."""
        token_ids = self._upload(plan.token_ids)
        if not (plan.token_ids == FROM_SLOT).any():
            return token_ids
        slots = np.repeat(plan.slots, np.diff(plan.query_indptr))
        return torch.where(token_ids == FROM_SLOT, self.sampler.last_tokens[self._upload(slots)], token_ids)

    def _score(self, hidden: _Hidden, plan: StepPlan) -> Scores:
        """Scores of the plan's score_targets, a bounded number of logits at a time."""
        most = max(1, _SCORED_LOGITS // self.config.vocab_size)
        scores = Scores.empty(len(plan.score_tokens), int(plan.score_top.max(initial=0)), self._device)
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
        if np.array_equal(tokens, hidden.tokens):
            return hidden.states
        return hidden.states.index_select(0, self._upload(np.searchsorted(hidden.tokens, tokens).astype(np.int32)))

    def _upload(self, array: npt.NDArray[np.int32]) -> Tensor:
        return upload(array, self._device)


@dataclass(frozen=True, slots=True)
class _Hidden:
    """Last hidden states [W, hidden_size] of a step's tokens [W], which are flat indices in rising order."""

    tokens: Int32Array
    states: Tensor


def _last_tokens(plan: StepPlan) -> Int32Array:
    """[S], flat index of the last token of each row that is sampled."""
    return plan.query_indptr[1:][plan.sample_rows] - 1


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
    if device.type not in _KV_SHARE:
        raise RequestError(f"device={name!r} is not supported; known: {', '.join(_KV_SHARE)}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RequestError(f"device={name!r} is not there: {torch.cuda.device_count()} CUDA devices were found")
    return device


def _kv_storage(config: ModelConfig, placement: Placement, settings: EngineConfig) -> KVStorage:
    """The KV pool that `settings` ask for.

    Raises:
        RequestError: it holds no page, or there is no memory for it.
    """
    page_size = settings.page_size or 1
    num_pages = _num_pages(config, placement, settings, page_size)
    try:
        return KVStorage(config, placement, num_pages=num_pages, page_size=page_size)
    except RuntimeError as error:  # torch's errors of memory
        raise RequestError(
            f"{placement.device} has no memory for a KV pool of {num_pages * page_size} tokens: lower "
            "max_total_tokens, memory_bytes or page_size"
        ) from error


def _num_pages(config: ModelConfig, placement: Placement, settings: EngineConfig, page_size: int) -> int:
    """Pages of the KV pool, no more than all requests at their longest could use."""
    if settings.max_total_tokens is not None:
        return -(-settings.max_total_tokens // page_size)
    memory = settings.memory_bytes or int(free_memory_bytes(placement.device) * _KV_SHARE[placement.device.type])
    pages = pages_for_memory(config, placement, memory_bytes=memory, page_size=page_size)
    if pages < 1:
        raise RequestError(f"memory_bytes={memory} holds not one page of {page_size} tokens of this model's KV cache")
    longest = -(-(settings.context_length or config.context_length) // page_size)
    return min(pages, settings.max_running_requests * longest)


def free_memory_bytes(device: torch.device) -> int:
    """Memory of the device that nobody uses."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return _host_memory(("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))


def _host_memory(names: Sequence[str]) -> int:
    """The first of these page counts that the system knows, in bytes."""
    known = next(name for name in names if name in os.sysconf_names)
    return os.sysconf(known) * os.sysconf("SC_PAGE_SIZE")
