"""What a step sampled, in one piece of memory, so that it comes to the host in one copy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampled:
    """S sampled tokens, and the log-probabilities of the A rows that ask for some.

    Attributes:
        words: [S + A + 2 * A * K] int32: token ids; then, as the bits of float32, the sampled tokens'
            log-probabilities; then ids [A, K] and, as bits again, log-probabilities [A, K] of the likeliest tokens.
        count: S.
        asked: [A], the rows that ask, rising.
        top_counts: [A], how many of the likeliest tokens each of them asks for.
    """

    words: Tensor
    count: int
    asked: npt.NDArray[np.intp]
    top_counts: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, count: int, logprob_counts: npt.NDArray[np.int64], vocab_size: int, device: torch.device) -> Sampled:
        """To be filled in.

        Args:
            logprob_counts: [S], how many of the likeliest tokens each row asks for; -1 for no log-probability at all.
            vocab_size: no row has more tokens than that.
        """
        asked = np.flatnonzero(logprob_counts >= 0)
        top_counts = np.minimum(logprob_counts[asked], vocab_size)
        words = count + len(asked) * (1 + 2 * int(top_counts.max(initial=0)))
        return cls(torch.empty(words, dtype=torch.int32, device=device), count, asked, top_counts)

    def moved(self, words: Tensor) -> Sampled:
        """The same in other memory."""
        return replace(self, words=words)

    @property
    def most(self) -> int:
        """K."""
        return int(self.top_counts.max(initial=0))

    @property
    def token_ids(self) -> Tensor:
        """[S] int32; `NOT_FINITE` or `NOTHING_ALLOWED` where the row could not be sampled."""
        return self.words[: self.count]

    @property
    def asked_logprobs(self) -> Tensor:
        """[A] float32, of the sampled tokens of `asked`, under the raw logits."""
        return self.words[self.count : self.count + len(self.asked)].view(torch.float32)

    @property
    def top_ids(self) -> Tensor:
        """[A, K] int32, the likeliest tokens under the raw logits, likeliest first."""
        start = self.count + len(self.asked)
        return self.words[start : start + len(self.asked) * self.most].view(-1, max(self.most, 1))

    @property
    def top_logprobs(self) -> Tensor:
        """[A, K] float32, of `top_ids`."""
        start = self.count + len(self.asked) * (1 + self.most)
        return self.words[start:].view(torch.float32).view(-1, max(self.most, 1))

    @property
    def logprobs(self) -> Tensor:
        """[S] float32: `asked_logprobs` in their rows, NaN in the others."""
        logprobs = torch.full((self.count,), torch.nan, dtype=torch.float32, device=self.words.device)
        if len(self.asked):
            logprobs[torch.from_numpy(self.asked)] = self.asked_logprobs
        return logprobs

    @property
    def top(self) -> tuple[tuple[Tensor, Tensor] | None, ...]:
        """Per row the likeliest tokens as (ids [k] int32, logprobs [k] float32); None where not asked for."""
        top: list[tuple[Tensor, Tensor] | None] = [None] * self.count
        if self.most:
            ids, logprobs = self.top_ids, self.top_logprobs
            for place, (row, count) in enumerate(zip(self.asked.tolist(), self.top_counts.tolist(), strict=True)):
                if count:
                    top[row] = ids[place, :count], logprobs[place, :count]
        return tuple(top)
