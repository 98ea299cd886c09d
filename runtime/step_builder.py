"""From the rows that a step computes to the arrays that a model runner reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .batch import FROM_SLOT, UNCONSTRAINED, Int32Array, SlotSetup, StepMasks, StepPlan, UInt32Array
from .request import Request

_NONE: Int32Array = np.empty(0, dtype=np.int32)
_FROM_SLOT: Int32Array = np.array([FROM_SLOT], dtype=np.int32)


class Row:
    """One request's share of a step: `count` tokens from `start` to `stop`, the next that are to be computed.

    Attributes:
        follows_sample: its one token is being sampled by the step before.
        is_sampled: the row reaches the end of what is known, or comes after it, so the next token is sampled.
        output_position: of the sampled token, in the request's output.
        scored: places of the tokens scored by this row; each is scored by the logits one place before.
        mask_row: of the mask table, referenced until the step's result is processed.
        dropped: the request ended, or goes on from another place, while the step was in flight.
    """

    __slots__ = (
        "count",
        "dropped",
        "follows_sample",
        "is_sampled",
        "mask_row",
        "output_position",
        "request",
        "scored",
        "start",
        "stop",
    )

    def __init__(self, request: Request, count: int) -> None:
        self.request = request
        self.start = start = request.next_start
        self.count = count
        self.stop = stop = start + count
        self.follows_sample = follows_sample = request.sample_due
        self.is_sampled = stop == request.end + follows_sample and request.kind == "generate"
        self.output_position = request.num_output + follows_sample
        self.dropped = False
        unscored = request.unscored
        self.scored = range(max(start + 1, unscored.start), min(stop + 1, unscored.stop)) if unscored else unscored
        self.mask_row = UNCONSTRAINED

    @property
    def takes_sample(self) -> bool:
        """Whether what the step samples is the request's next token; false where more is known by now."""
        return self.is_sampled and self.stop == self.request.end

    @property
    def is_outrun(self) -> bool:
        """Whether it samples a token that is known by now."""
        return self.is_sampled and self.stop != self.request.end

    def token_ids(self) -> Int32Array:
        """The row's tokens; `FROM_SLOT` for one that the step before samples."""
        return _FROM_SLOT if self.follows_sample else self.request.token_ids[self.start : self.stop]


def build_plan(step: int, rows: Sequence[Row], page_size: int) -> StepPlan:
    """The plan of a step. Its arrays are copies: they stay as they are when requests go on.

    Every row's request has a slot, and pages for all of the row's tokens.
    """
    starts = _int32([row.start for row in rows])
    counts = _int32([row.count for row in rows])
    query_indptr = _indptr(counts)
    seq_lens = starts + counts
    page_counts = -(-seq_lens // page_size)
    page_indptr = _indptr(page_counts)
    tables = [row.request.page_table.pages for row in rows]
    page_ids = np.concatenate([table.first(n) for table, n in zip(tables, page_counts.tolist(), strict=True)])
    positions = np.arange(query_indptr[-1], dtype=np.int32) + np.repeat(starts - query_indptr[:-1], counts)
    pages = page_ids[np.repeat(page_indptr[:-1], counts) + positions // page_size]
    sampled = [index for index, row in enumerate(rows) if row.is_sampled]
    score_tokens, score_targets, score_top = _scores(rows, query_indptr)
    return StepPlan(
        step=step,
        setups=tuple(_setup(row.request) for row in rows if row.request.setup_due),
        token_ids=np.concatenate([row.token_ids() for row in rows]),
        positions=positions,
        kv_slots=pages * np.int32(page_size) + positions % page_size,
        query_indptr=query_indptr,
        page_indptr=page_indptr,
        page_ids=page_ids,
        seq_lens=seq_lens,
        slots=_int32([row.request.slot for row in rows]),
        sample_rows=_int32(sampled),
        output_positions=_int32([rows[index].output_position for index in sampled]),
        score_tokens=score_tokens,
        score_targets=score_targets,
        score_top=score_top,
    )


def build_masks(rows: Sequence[Row], updates: tuple[Int32Array, UInt32Array] | None) -> StepMasks:
    """The masks of a step's rows, in the order of its plan."""
    return StepMasks(_int32([row.mask_row for row in rows if row.is_sampled]), updates)


def _scores(rows: Sequence[Row], query_indptr: Int32Array) -> tuple[Int32Array, Int32Array, Int32Array]:
    """Flat indices whose logits score a token, the tokens scored, and how many likeliest beside each; in row order."""
    scoring = [(row, first) for row, first in zip(rows, query_indptr.tolist(), strict=False) if row.scored]
    if not scoring:  # as in most steps
        return _NONE, _NONE, _NONE
    tokens = [np.arange(row.scored.start - 1, row.scored.stop - 1) + (first - row.start) for row, first in scoring]
    targets = [row.request.token_ids[row.scored.start : row.scored.stop] for row, _ in scoring]
    top = _int32([_likeliest(row) for row, _ in scoring])
    return (
        np.concatenate(tokens, dtype=np.int32),
        np.concatenate(targets),
        np.repeat(top, [len(row.scored) for row, _ in scoring]),
    )


def _likeliest(row: Row) -> int:
    """How many of the likeliest tokens are wanted beside what a row scores: of its prompt, or of forced output."""
    params, of_output = row.request.params, row.scored.start >= len(row.request.prompt_ids)
    return (params.logprobs if of_output else params.prompt_logprobs) or 0


def _setup(request: Request) -> SlotSetup:
    held_back = () if request.matcher is not None else sorted(request.stop_ids)
    return SlotSetup(
        slot=request.slot,
        params=request.params,
        prompt_ids=request.prompt_ids,
        output_ids=request.output_ids.copy(),
        end_ids=_int32(held_back),
    )


def _indptr(counts: Int32Array) -> Int32Array:
    indptr = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=indptr[1:])
    return indptr


def _int32(values: Sequence[int]) -> Int32Array:
    return np.array(values, dtype=np.int32)
