"""From the rows that a step computes to the arrays that a model runner reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from .batch import FROM_SLOT, UNCONSTRAINED, Int32Array, SlotSetup, StepMasks, StepPlan, UInt32Array
from .request import Request

_NONE: Int32Array = np.empty(0, dtype=np.int32)
_NO_SCORES = range(0)


class Line(Protocol):
    """Tokens of one request that follow one another: a row of the plan, and a row here or a part of one.

    Attributes:
        first: index of its first token among those of the request.
        start: place of that token in its text.
        count: how many tokens it has.
        follows_sample, is_sampled: see `Row`.
    """

    @property
    def request(self) -> Request: ...
    @property
    def first(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def follows_sample(self) -> bool: ...
    @property
    def is_sampled(self) -> bool: ...

    def token_ids(self) -> Int32Array:
        """[count], its tokens. Not to be asked for where the line follows a sample."""

    def pages(self, count: int, page_size: int) -> Int32Array:
        """The first `count` pages of its text."""


class Row:
    """One request's share of a step: `count` tokens from `start` to `stop`, the next that are to be computed.

    Attributes:
        follows_sample: its one token is being sampled by the step before.
        is_sampled: the row reaches the end of what is known, or comes after it, so the next token is sampled.
        output_position: of the sampled token, in the request's output.
        scored: which of the request's scores this row tells.
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
        self.scored = request.scored_by(start, stop) if request.asks_scores else _NO_SCORES
        self.mask_row = UNCONSTRAINED

    @property
    def first(self) -> int:
        return self.start

    @property
    def takes_sample(self) -> bool:
        """Whether what the step samples is the request's next token; false where more is known by now."""
        return self.is_sampled and self.stop == self.request.end

    @property
    def is_outrun(self) -> bool:
        """Whether it samples a token that is known by now."""
        return self.is_sampled and self.stop != self.request.end

    def token_ids(self) -> Int32Array:
        """The row's tokens, where it does not follow a sample."""
        return self.request.token_ids[self.start : self.stop]

    def pages(self, count: int, page_size: int) -> Int32Array:
        """The first `count` pages of its context."""
        return self.request.page_table.pages.first(count)


def build_plan(step: int, rows: Sequence[Row], page_size: int) -> StepPlan:
    """The plan of a step. Its arrays are copies: they stay as they are when requests go on.

    Every row's request has a slot, and pages for all of the row's tokens.
    """
    lines = _lines(rows)
    starts = _int32([line.start for line in lines])
    counts = _int32([line.count for line in lines])
    query_indptr = _indptr(counts)
    seq_lens = starts + counts
    page_counts = -(-seq_lens // page_size)
    page_indptr = _indptr(page_counts)
    page_ids = np.concatenate([line.pages(n, page_size) for line, n in zip(lines, page_counts.tolist(), strict=True)])
    positions = np.arange(query_indptr[-1], dtype=np.int32) + np.repeat(starts - query_indptr[:-1], counts)
    pages = page_ids[np.repeat(page_indptr[:-1], counts) + positions // page_size]
    sample_rows = [index for index, line in enumerate(lines) if line.is_sampled]
    score_tokens, score_targets, score_top = _scores(rows, lines, query_indptr)
    return StepPlan(
        step=step,
        setups=tuple(_setup(row.request) for row in rows if row.request.setup_due),
        token_ids=_token_ids(lines, query_indptr),
        positions=positions,
        kv_slots=pages * np.int32(page_size) + positions % page_size,
        query_indptr=query_indptr,
        page_indptr=page_indptr,
        page_ids=page_ids,
        seq_lens=seq_lens,
        slots=_int32([line.request.slot for line in lines]),
        sample_rows=_int32(sample_rows),
        output_positions=_int32([row.output_position for row in rows if row.is_sampled]),
        score_tokens=score_tokens,
        score_targets=score_targets,
        score_top=score_top,
    )


def _token_ids(lines: Sequence[Line], query_indptr: Int32Array) -> Int32Array:
    """Tokens of all lines; `FROM_SLOT` for those that the step before samples, which are nearly all of most steps."""
    token_ids: Int32Array = np.full(query_indptr[-1], FROM_SLOT, dtype=np.int32)
    for line, first in zip(lines, query_indptr.tolist(), strict=False):
        if not line.follows_sample:
            token_ids[first : first + line.count] = line.token_ids()
    return token_ids


def build_masks(rows: Sequence[Row], updates: tuple[Int32Array, UInt32Array] | None) -> StepMasks:
    """The masks of a step's rows, in the order of its plan."""
    return StepMasks(_int32([row.mask_row for row in rows if row.is_sampled]), updates)


def _lines(rows: Sequence[Row]) -> Sequence[Line]:
    """The lines of rows, which keep their order.

    Limbs of one token come first, with the decodes: attention has kernels for lines of one token.
    """
    if not any(row.request.has_limbs for row in rows):
        return rows
    single: list[Line] = []
    others: list[Line] = []
    for row in rows:
        for line in row.request.lines(row):
            (single if line.count == 1 and line is not row else others).append(line)
    return single + others


def _scores(
    rows: Sequence[Row], lines: Sequence[Line], query_indptr: Int32Array
) -> tuple[Int32Array, Int32Array, Int32Array]:
    """Flat indices whose logits score a token, the tokens scored, and how many likeliest beside each; in row order."""
    scoring = [row for row in rows if row.scored]
    if not scoring:  # as in most steps
        return _NONE, _NONE, _NONE
    at: dict[Request, list[tuple[int, int]]] = {row.request: [] for row in scoring}
    for line, flat in zip(lines, query_indptr.tolist(), strict=False):
        if line.request in at:
            at[line.request].append((line.first, flat))
    told = [row.request.scoring(row.scored) for row in scoring]
    tokens = [_flat(sources, at[row.request]) for row, (sources, _) in zip(scoring, told, strict=True)]
    top = _int32([_likeliest(row) for row in scoring])
    return (
        np.concatenate(tokens, dtype=np.int32),
        np.concatenate([targets for _, targets in told]),
        np.repeat(top, [len(row.scored) for row in scoring]),
    )


def _flat(indices: Int32Array, lines: list[tuple[int, int]]) -> Int32Array:
    """Where tokens of a request are in the step.

    Args:
        indices: of the tokens among those of the request.
        lines: the request's lines, in any order: the index of the first token, and where that is in the step.
    """
    firsts, flats = (_int32(values) for values in zip(*sorted(lines), strict=True))
    line = np.searchsorted(firsts, indices, side="right") - 1
    flat: Int32Array = indices - firsts[line] + flats[line]
    return flat


def _likeliest(row: Row) -> int:
    """How many of the likeliest tokens are wanted beside what a row scores: of its prompt, or of forced output."""
    params = row.request.params
    return (params.logprobs if row.request.are_output(row.scored) else params.prompt_logprobs) or 0


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
