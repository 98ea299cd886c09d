"""A step that was launched: what is left to sample, what was computed, and how long the device took."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import StepMasks, StepPlan, StepResult
from .errors import EngineError
from .host_copies import HostCopy
from .sampled import Sampled
from .sampler import Sampler


@dataclass(frozen=True, slots=True)
class Scores:
    """What a step scored: see `StepResult.score_logprobs` and `score_top`.

    Attributes:
        logprobs: [P] float32, of the scored tokens.
        top_ids: [P, K] int32, the likeliest tokens, likeliest first.
        top_logprobs: [P, K] float32, of those.
    """

    logprobs: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    @classmethod
    def empty(cls, places: int, top: int, device: torch.device) -> Scores:
        """Scores to be filled in."""
        return cls(
            torch.empty(places, dtype=torch.float32, device=device),
            torch.zeros((places, top), dtype=torch.int32, device=device),
            torch.zeros((places, top), dtype=torch.float32, device=device),
        )

    def words(self) -> Tensor:
        """All of them as int32 [P * (1 + 2 K)], one after the other; numbers as their bits."""
        parts = (self.logprobs.view(torch.int32), self.top_ids, self.top_logprobs.view(torch.int32))
        return torch.cat([part.flatten() for part in parts])

    def moved(self, words: Tensor) -> Scores:
        """The same in other memory: where `words` came to."""
        places, top = self.top_ids.shape
        logprobs, ids, likeliest = torch.split(words, [places, places * top, places * top])
        return Scores(
            logprobs.view(torch.float32), ids.view(places, top), likeliest.view(torch.float32).view(places, top)
        )


class DeviceTimer:
    """How long the device was busy with one step: from its first operation to its last."""

    def __init__(self, device: torch.device) -> None:
        """Begin with the operation that is enqueued next."""
        self._on_gpu = device.type == "cuda"
        self._begin = _cuda_mark() if self._on_gpu else None
        self._end: torch.cuda.Event | None = None
        self._seconds = -time.perf_counter()

    def stop(self) -> None:
        """End with the operation that was enqueued last; on a CPU, now."""
        if self._on_gpu:
            self._end = _cuda_mark()
        self._seconds += time.perf_counter()

    def pause(self) -> None:
        """On a CPU: what follows is no part of the step."""
        self._seconds += time.perf_counter()

    def resume(self) -> None:
        """On a CPU: the step goes on."""
        self._seconds -= time.perf_counter()

    def wait(self) -> float:
        """Wait until the device has come to the end; returns seconds."""
        if self._begin is None or self._end is None:
            return self._seconds
        self._end.synchronize()
        return self._begin.elapsed_time(self._end) / 1000  # type: ignore[no-any-return]  # torch leaves it unannotated


def _cuda_mark() -> torch.cuda.Event:
    mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    mark.record()
    return mark


class RunnerStep:
    """A launched step: its logits until they are sampled, then its tensors on their way to the host."""

    def __init__(self, sampler: Sampler, plan: StepPlan, logits: Tensor, scores: Scores, timer: DeviceTimer) -> None:
        self._sampler = sampler
        self._plan = plan
        self._logits: Tensor | None = logits
        self._scores = scores
        self._timer = timer
        self._timer.pause()
        self._sampled: Sampled | None = None
        self._copies: tuple[HostCopy, HostCopy | None] | None = None

    def sample(self, masks: StepMasks | None = None) -> None:
        """Sample the step's rows, also where there are none: the sampler counts tokens that were forced.

        Then everything begins to be copied to the host.
        """
        if self._logits is None:
            raise EngineError(f"step {self._plan.step} was sampled twice")
        self._timer.resume()
        with torch.inference_mode():
            self._sampled = self._sampler.sample(self._logits, self._plan, masks)
            self._logits = None
            begin = self._sampler.host_copies.begin
            scored = len(self._plan.score_tokens) > 0
            self._copies = begin(self._sampled.words), begin(self._scores.words()) if scored else None
        self._timer.stop()

    def result(self) -> StepResult:
        """Wait for the step. Rows that could not be sampled are marked in the result."""
        if self._copies is None:
            self.sample()
        assert self._copies is not None
        assert self._sampled is not None
        device_s = self._timer.wait()
        copied, copied_scores = self._copies
        with torch.inference_mode():
            sampled = self._sampled.moved(copied.take())
            nothing = Scores.empty(0, 0, torch.device("cpu"))
            scores = nothing if copied_scores is None else self._scores.moved(copied_scores.take())
            return StepResult(
                step=self._plan.step,
                token_ids=sampled.token_ids.numpy(),
                logprobs=sampled.logprobs.numpy(),
                top_logprobs=tuple(
                    None if pair is None else (pair[0].numpy(), pair[1].numpy()) for pair in sampled.top
                ),
                score_logprobs=scores.logprobs.numpy(),
                score_top=(scores.top_ids.numpy(), scores.top_logprobs.numpy()),
                device_s=device_s,
            )
