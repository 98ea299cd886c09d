"""Step plans for a model runner, built by hand: rows over scrambled pages, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from palmette.runtime.batch import Int32Array, SlotSetup, StepPlan
from palmette.runtime.sampling_params import SamplingParams


@dataclass
class PlannedRequest:
    """A request's pages and how much of it is in them."""

    slot: int
    pages: Int32Array
    prompt: list[int]
    computed: int = 0
    sampled: int = 0
    loaded: bool = False


@dataclass(frozen=True)
class PlannedRow:
    """The next `token_ids` of a request; `sample` asks for the token after them, `score` for their log-probs."""

    request: PlannedRequest
    token_ids: Sequence[int]
    sample: bool = True
    score: Sequence[tuple[int, int]] = ()
    """Pairs of an index into token_ids and the token scored there."""
    top: int = 0
    """How many of the likeliest tokens are wanted at each scored place."""


@dataclass
class StepPlanner:
    """Hands out scrambled pages and turns rows into plans."""

    num_pages: int
    page_size: int
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0))
    _free: list[int] = field(default_factory=list)
    _steps: int = 0
    _slots: int = 0

    def __post_init__(self) -> None:
        self._free = np.random.default_rng(0).permutation(self.num_pages).tolist()

    def request(self, prompt: Sequence[int], *, most_tokens: int) -> PlannedRequest:
        count = -(-most_tokens // self.page_size)
        taken, self._free = self._free[:count], self._free[count:]
        assert len(taken) == count, "the planner has too few pages"
        self._slots += 1
        return PlannedRequest(self._slots - 1, np.array(taken, dtype=np.int32), list(prompt))

    def plan(self, rows: Sequence[PlannedRow]) -> StepPlan:
        """The plan of a step, after which the rows' tokens count as computed."""
        counts = [len(row.token_ids) for row in rows]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        positions = [row.request.computed + np.arange(n) for row, n in zip(rows, counts, strict=True)]
        slots = [
            row.request.pages[p // self.page_size] * self.page_size + p % self.page_size
            for row, p in zip(rows, positions, strict=True)
        ]
        seq_lens = [row.request.computed + n for row, n in zip(rows, counts, strict=True)]
        pages = [row.request.pages[: -(-length // self.page_size)] for row, length in zip(rows, seq_lens, strict=True)]
        scored = [(indptr[r] + i, token, row.top) for r, row in enumerate(rows) for i, token in row.score]
        sampled = [r for r, row in enumerate(rows) if row.sample]
        plan = StepPlan(
            step=self._steps,
            setups=self._setups(rows),
            token_ids=_int32([token for row in rows for token in row.token_ids]),
            positions=_int32(np.concatenate(positions)),
            kv_slots=_int32(np.concatenate(slots)),
            query_indptr=_int32(indptr),
            page_indptr=_int32(np.concatenate([[0], np.cumsum([len(ids) for ids in pages])])),
            page_ids=_int32(np.concatenate(pages)),
            seq_lens=_int32(seq_lens),
            slots=_int32([row.request.slot for row in rows]),
            sample_rows=_int32(sampled),
            output_positions=_int32([rows[r].request.sampled for r in sampled]),
            score_tokens=_int32([t for t, _, _ in scored]),
            score_targets=_int32([token for _, token, _ in scored]),
            score_top=_int32([top for _, _, top in scored]),
        )
        self._steps += 1
        for row, n in zip(rows, counts, strict=True):
            row.request.computed += n
            row.request.sampled += row.sample
        return plan

    def _setups(self, rows: Sequence[PlannedRow]) -> tuple[SlotSetup, ...]:
        setups = []
        for request in (row.request for row in rows):
            if not request.loaded:
                request.loaded = True
                none = _int32([])
                setups.append(SlotSetup(request.slot, self.params, _int32(request.prompt), none, none))
        return tuple(setups)


def _int32(values: object) -> Int32Array:
    return np.asarray(values, dtype=np.int32)
