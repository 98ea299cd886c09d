"""A device that takes the time of an 8B model on an H200 for each step, and computes nothing.

Its clock is the CPU time of the thread that uses it, plus the time for which that thread would have waited for the
device: it does not depend on what else the machine does, and a run takes only as long as the host's own work.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from palmette.runtime.batch import FROM_SLOT, UNCONSTRAINED, Int32Array, StepMasks, StepPlan, StepResult, UInt32Array

GEMM_TOKENS = (1, 64, 128, 256, 512, 1024, 8192, 65536)
GEMM_MS = (5.1, 5.1, 6.8, 7.0, 11.6, 22.2, 170.0, 1360.0)
"""All matrix products of one step; measured up to 8192 tokens, and in proportion beyond (shared/gpu/README.md)."""

LAYERS = 32
KV_BYTES = 2 * 8 * 128 * 2
"""Of one token in one layer."""

DECODE_FLOOR_S, DECODE_ROW_S, DECODE_BYTES_PER_S = 8e-6, 0.27e-6, 4.4e12
PREFILL_FLOOR_S, PREFILL_FLOPS = 80e-6, 540e12
"""Attention of one layer. With these FlashInfer's measured times come out within a tenth."""

SAMPLE_S_A_ROW = 0.2e-6
OTHER_S, OTHER_S_A_TOKEN = 0.3e-3, 1.3e-6
"""What lies between kernels; and norms, rotary embedding and activations: 5.6 MB a token at 4.24 TB/s."""


@dataclass
class Device:
    """Step times and the clock.

    Attributes:
        launch_s: of the host's time, to launch a step with prefills and one that is a CUDA graph.
        reads_shared_once: whether decode attention reads a page of several rows once.
        waited_s: what the clock shows beside the thread's CPU time.
        stalled_s: time for which the host waited for the device.
        free_at: when the device has computed all steps so far.
    """

    launch_s: tuple[float, float] = (3e-3, 0.5e-3)
    reads_shared_once: bool = False
    waited_s: float = 0.0
    stalled_s: float = 0.0
    free_at: float = 0.0
    steps: list[tuple[int, int, float]] = field(default_factory=list)
    """Of each step: rows, tokens, seconds."""
    gaps: list[float] = field(default_factory=list)
    """Before each step: how long the device had nothing to do."""

    def now(self) -> float:
        """Seconds, of no particular beginning."""
        return time.thread_time() + self.waited_s

    def forget(self, seconds: float) -> None:
        """Take CPU time off the clock: the stand-in's own work is nobody's."""
        self.waited_s -= seconds

    def forward(self, plan: StepPlan) -> tuple[float, float]:
        """Launch a step's forward pass; returns when it ends, and how long the device computes."""
        began = time.thread_time()
        seconds = self.step_s(plan)
        self.steps.append((len(plan.slots), len(plan.token_ids), seconds))
        self.forget(time.thread_time() - began)
        self.waited_s += self.launch_s[len(plan.token_ids) == len(plan.slots)]
        self.gaps.append(max(0.0, self.now() - self.free_at))
        self.free_at = max(self.free_at, self.now()) + seconds
        return self.free_at, seconds

    def sample(self, rows: int) -> tuple[float, float]:
        """Launch a step's sampling; as `forward`."""
        seconds = SAMPLE_S_A_ROW * rows
        self.free_at = max(self.free_at, self.now()) + seconds
        return self.free_at, seconds

    def wait(self, until: float) -> None:
        """Have the host wait for the device."""
        seconds = max(0.0, until - self.now())
        self.waited_s += seconds
        self.stalled_s += seconds

    def step_s(self, plan: StepPlan) -> float:
        """How long the device computes a step, but for sampling."""
        gemm_s = float(np.interp(len(plan.token_ids), GEMM_TOKENS, GEMM_MS)) / 1000
        counts = np.diff(plan.query_indptr)
        decodes = counts == 1
        attention_s = 0.0
        if decodes.any():
            context = float(plan.seq_lens[decodes].sum())
            if self.reads_shared_once:
                context = _own_tokens(plan, int(decodes.sum()))
            attention_s += (
                DECODE_FLOOR_S + DECODE_ROW_S * min(64, int(decodes.sum())) + context * KV_BYTES / DECODE_BYTES_PER_S
            )
        if not decodes.all():
            new, ends = counts[~decodes].astype(np.float64), plan.seq_lens[~decodes].astype(np.float64)
            pairs = (new * ends - new * new / 2).sum()
            attention_s += PREFILL_FLOOR_S + 4 * 4096 * pairs / PREFILL_FLOPS
        return float(gemm_s + LAYERS * attention_s + OTHER_S + OTHER_S_A_TOKEN * len(plan.token_ids))


def _own_tokens(plan: StepPlan, decodes: int) -> float:
    """Tokens of distinct pages of the first rows, which decode."""
    pages = plan.page_ids[: plan.page_indptr[decodes]]
    return float(len(np.unique(pages)) * 16)


class TimedRunner:
    """Runs plans on a `Device`: draws any token that a row's mask allows."""

    def __init__(self, device: Device, vocab_size: int) -> None:
        self.device = device
        self.vocab_size = vocab_size
        self._random = np.random.default_rng(5)
        self._allowed: dict[int, Int32Array] = {}

    def launch(self, plan: StepPlan) -> TimedStep:
        """Begin a step."""
        assert (plan.token_ids >= FROM_SLOT).all()
        return TimedStep(self, plan, *self.device.forward(plan))

    def draw(self, plan: StepPlan, masks: StepMasks | None) -> Int32Array:
        """The tokens of a step's sampled rows."""
        tokens: Int32Array = self._random.integers(1000, 30000, size=len(plan.sample_rows)).astype(np.int32)
        if masks is None:
            return tokens
        if masks.updates is not None:
            for row, bits in zip(masks.updates[0].tolist(), masks.updates[1], strict=True):
                self._allowed[row] = _ids_of(bits)
        for index in np.flatnonzero(masks.rows != UNCONSTRAINED).tolist():
            allowed = self._allowed[int(masks.rows[index])]
            tokens[index] = allowed[self._random.integers(len(allowed))]
        return tokens


def _ids_of(bits: UInt32Array) -> Int32Array:
    unpacked: npt.NDArray[np.uint8] = np.unpackbits(bits.view(np.uint8), bitorder="little")
    return np.flatnonzero(unpacked).astype(np.int32)


class TimedStep:
    """A step in flight on a `Device`."""

    def __init__(self, runner: TimedRunner, plan: StepPlan, done_at: float, device_s: float) -> None:
        self._runner = runner
        self._plan = plan
        self._done_at = done_at
        self._device_s = device_s
        self._tokens: Int32Array | None = None

    def sample(self, masks: StepMasks | None = None) -> None:
        """Have its rows sampled."""
        began = time.thread_time()
        self._tokens = self._runner.draw(self._plan, masks)
        self._runner.device.forget(time.thread_time() - began)
        self._done_at, seconds = self._runner.device.sample(len(self._tokens))
        self._device_s += seconds

    def result(self) -> StepResult:
        """Wait until it is done."""
        if self._tokens is None:
            self.sample()
        assert self._tokens is not None
        self._runner.device.wait(self._done_at)
        rows = len(self._tokens)
        nothing = np.empty((0, 0), dtype=np.int32)
        return StepResult(
            step=self._plan.step,
            token_ids=self._tokens,
            logprobs=np.full(rows, np.nan, dtype=np.float32),
            top_logprobs=(None,) * rows,
            score_logprobs=np.empty(0, dtype=np.float32),
            score_top=(nothing, nothing.astype(np.float32)),
            device_s=self._device_s,
        )
