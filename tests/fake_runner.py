"""A scripted model behind a paged KV cache, merciless about pages, and a clock that moves when told.

`FakeRunner` stands for a model whose KV cache holds the tokens themselves. Every sampled row reads its whole context
back through its page table, and the next token is a hash of that context, so a wrong page gives a wrong answer.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from palmette.constrained import Vocabulary
from palmette.runtime.batch import (
    FROM_SLOT,
    UNCONSTRAINED,
    Int32Array,
    SlotSetup,
    StepMasks,
    StepPlan,
    StepResult,
    UInt32Array,
)
from palmette.runtime.sampling_params import SamplingParams

BoolArray = npt.NDArray[np.bool_]

END_ID = 1
OTHER_END_ID = 2
_LETTERS = [bytes([byte]) for byte in b"abcdefghijklmnopqrstuvwxyz"]
_DIGITS = [bytes([byte]) for byte in b"0123456789"]
_LONGER = [b" ", b".", b"ab", b"ba", b"the ", b"\xf0\x9f", b"\x98\x80", "é".encode(), b"c.", b"\n"]
TOKEN_BYTES: tuple[bytes | None, ...] = (None, None, None, *_LETTERS, *_DIGITS, *_LONGER)
VOCABULARY = Vocabulary(TOKEN_BYTES, end_ids=(END_ID, OTHER_END_ID), size=64)
NO_TOKENS: Int32Array = np.empty(0, dtype=np.int32)


def token(text: str) -> int:
    """The id of the token that is spelled `text`."""
    return TOKEN_BYTES.index(text.encode())


def ids(*token_ids: int) -> Int32Array:
    """An int32 array."""
    return np.array(token_ids, dtype=np.int32)


class FakeClock:
    """Time that moves only when told."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s


# -- the model ------------------------------------------------------------------------------------------------------


class FakeModel:
    """A deterministic language model: everything is a hash of the whole context."""

    def draw(self, context: Int32Array, allowed: BoolArray, salt: bytes = b"") -> int:
        """The best of the allowed tokens [vocabulary size]; as for a greedy model, a narrower choice keeps the best."""
        assert allowed.any(), "no token is allowed"
        scores = _mix(np.uint64(_digest(context, salt)) + np.arange(1, len(allowed) + 1, dtype=np.uint64))
        return int(np.where(allowed, scores | np.uint64(1), np.uint64(0)).argmax())

    def logprobs(self, context: Int32Array) -> npt.NDArray[np.float32]:
        """[vocabulary size], exact in float32."""
        mixed = _mix(np.uint64(_digest(context, b"logprob")) + np.arange(VOCABULARY.size, dtype=np.uint64))
        return -((mixed >> np.uint64(52)).astype(np.float32)) / np.float32(256)


BROKEN = token("z")


class BrokenModel(FakeModel):
    """The fake model, broken for contexts of at least `length` tokens that begin with the token "z"."""

    def __init__(self, failure: int, length: int = 0) -> None:
        self.failure = failure
        self.length = length

    def _fails(self, context: Int32Array) -> bool:
        return bool(context[0] == BROKEN) and len(context) >= self.length

    def draw(self, context: Int32Array, allowed: BoolArray, salt: bytes = b"") -> int:
        return self.failure if self._fails(context) else super().draw(context, allowed, salt)

    def logprobs(self, context: Int32Array) -> npt.NDArray[np.float32]:
        logprobs = super().logprobs(context)
        return logprobs * np.float32(np.nan) if self._fails(context) else logprobs


def _digest(context: Int32Array, salt: bytes) -> int:
    data = np.ascontiguousarray(context, dtype=np.int32).tobytes()
    return int.from_bytes(hashlib.blake2b(data + salt, digest_size=7).digest(), "little")


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def random_stream(params: SamplingParams, position: int, output: Sequence[int]) -> bytes:
    """What besides the context decides a draw: seed and output position, and the output where it is penalised."""
    salt = b"" if params.greedy else struct.pack("<QI", params.seed, position)
    return salt + ids(*output).tobytes() if params.has_penalties else salt


def held_back(allowed: BoolArray, params: SamplingParams, end_ids: Sequence[int], position: int) -> BoolArray:
    """`allowed` without the end tokens where min_tokens holds them back."""
    if position >= params.min_tokens:
        return allowed
    allowed = allowed.copy()
    allowed[list(end_ids)] = False
    return allowed


def everything() -> BoolArray:
    """The tokens that an unconstrained request may take."""
    return np.arange(VOCABULARY.size) < len(TOKEN_BYTES)


def unpack(bits: UInt32Array) -> BoolArray:
    """Packed mask words as one flag a token."""
    return np.unpackbits(bits.view(np.uint8), bitorder="little")[: VOCABULARY.size].astype(np.bool_)


@dataclass
class FakeStep:
    """A step in flight. It is computed when its result is asked for, after everything that was launched before it."""

    runner: FakeRunner
    plan: StepPlan
    masks: StepMasks | None = None
    sampled: bool = False
    answer: StepResult | None = None

    def sample(self, masks: StepMasks | None = None) -> None:
        assert not self.sampled, "a step was sampled twice"
        self.sampled, self.masks = True, masks

    def result(self) -> StepResult:
        self.sampled = True
        self.runner.compute_until(self)
        assert self.answer is not None
        return self.answer


@dataclass
class _Slot:
    setup: SlotSetup
    known: list[int] = field(default_factory=list)  # prompt and output, as far as the runner was told or sampled


class FakeRunner:
    """Runs steps of the fake model over a paged KV cache that holds (token id, position) by slot.

    Like a device it does what it was told in order, and late: a step that was launched is computed when a result is
    wanted, so what the host changes meanwhile must not reach it.

    Attributes:
        plans: every plan, oldest first, where `keep_plans` is set.
        computed: tokens computed so far.
    """

    def __init__(self, *, num_pages: int, page_size: int, keep_plans: bool = False) -> None:
        self.model = FakeModel()
        self.page_size = page_size
        self.keep_plans = keep_plans
        self.plans: list[StepPlan] = []
        self.computed = 0
        self._tokens = np.full(num_pages * page_size, -1, dtype=np.int32)
        self._positions = np.full(num_pages * page_size, -1, dtype=np.int32)
        self._slots: dict[int, _Slot] = {}
        self._masks: dict[int, UInt32Array] = {}
        self._queue: deque[FakeStep | Int32Array] = deque()

    def poison(self, pages: Int32Array) -> None:
        """Destroy what free pages hold, once the steps in flight are computed: as whoever is given them next would."""
        self._queue.append(pages)
        if not any(isinstance(each, FakeStep) for each in self._queue):
            self.compute_until(None)

    def compute_until(self, last: FakeStep | None) -> None:
        """Do what was enqueued, up to this step."""
        while self._queue:
            task = self._queue.popleft()
            if isinstance(task, FakeStep):
                task.answer = self._compute(task.plan, task.masks)
            else:
                self._destroy(task)
            if task is last:
                break

    def _destroy(self, pages: Int32Array) -> None:
        slots = (pages[:, None] * self.page_size + np.arange(self.page_size)).ravel()
        self._tokens[slots] = -7
        self._positions[slots] = -7

    def launch(self, plan: StepPlan) -> FakeStep:
        if self.keep_plans:
            self.plans.append(plan)
        self.computed += len(plan.token_ids)
        assert all(each.sampled for each in self._queue if isinstance(each, FakeStep)), "launched before sampling"
        step = FakeStep(self, plan)
        self._queue.append(step)
        return step

    def _compute(self, plan: StepPlan, masks: StepMasks | None) -> StepResult:
        for setup in plan.setups:
            assert setup.params.seed is not None, "a slot was set up without a seed"
            self._slots[setup.slot] = _Slot(setup, [*setup.prompt_ids.tolist(), *setup.output_ids.tolist()])
        if masks is not None and masks.updates is not None:
            self._masks.update(zip(masks.updates[0].tolist(), masks.updates[1], strict=True))
        self._check_shapes(plan)
        self._write(plan)
        return self._result(plan, masks)

    def _check_shapes(self, plan: StepPlan) -> None:
        rows = len(plan.slots)
        assert plan.query_indptr[0] == plan.page_indptr[0] == 0
        assert (np.diff(plan.query_indptr) > 0).all(), "a row without tokens"
        assert plan.query_indptr[-1] == len(plan.token_ids) == len(plan.positions) == len(plan.kv_slots)
        assert plan.page_indptr[-1] == len(plan.page_ids)
        assert len(plan.seq_lens) == rows
        from_slot = np.repeat(plan.slots, np.diff(plan.query_indptr))[plan.token_ids == FROM_SLOT]
        for slots in (plan.slots[plan.sample_rows], from_slot):
            assert len(slots) == len(set(slots.tolist())), "two rows for one slot"
        assert len(set(plan.kv_slots.tolist())) == len(plan.kv_slots), "two tokens are written to one place"
        assert (np.diff(plan.page_indptr) == -(-plan.seq_lens // self.page_size)).all(), "wrong number of pages"

    def _write(self, plan: StepPlan) -> None:
        slots = np.repeat(plan.slots, np.diff(plan.query_indptr))
        token_ids = plan.token_ids.copy()
        for index in np.flatnonzero(token_ids == FROM_SLOT):
            token_ids[index] = self._slots[int(slots[index])].known[-1]
        self._tokens[plan.kv_slots] = token_ids
        self._positions[plan.kv_slots] = plan.positions
        for token_id, position, slot in zip(token_ids.tolist(), plan.positions.tolist(), slots.tolist(), strict=True):
            state = self._slots.get(slot)
            if state is not None and position == len(state.known):
                state.known.append(token_id)  # forced

    def _context(self, plan: StepPlan, row: int) -> Int32Array:
        """The row's tokens as the page table finds them."""
        pages = plan.page_ids[plan.page_indptr[row] : plan.page_indptr[row + 1]]
        slots = (pages[:, None] * self.page_size + np.arange(self.page_size)).ravel()[: plan.seq_lens[row]]
        assert np.array_equal(self._positions[slots], np.arange(len(slots))), "the page table shows foreign tokens"
        first, last = plan.query_indptr[row], plan.query_indptr[row + 1]
        assert np.array_equal(plan.kv_slots[first:last], slots[len(slots) - (last - first) :])
        context: Int32Array = self._tokens[slots]
        return context

    def _result(self, plan: StepPlan, masks: StepMasks | None) -> StepResult:
        rows = [UNCONSTRAINED] * len(plan.sample_rows) if masks is None else masks.rows.tolist()
        assert len(rows) == len(plan.sample_rows)
        sampled = [self._sample(plan, index, mask_row) for index, mask_row in enumerate(rows)]
        scored = self._scored(plan)
        most = int(plan.score_top.max(initial=0))
        likeliest = [np.argsort(-logprobs, kind="stable")[:most].astype(np.int32) for logprobs in scored]
        return StepResult(
            step=plan.step,
            token_ids=ids(*[token_id for token_id, _, _ in sampled]),
            logprobs=np.array([logprob for _, logprob, _ in sampled], dtype=np.float32),
            top_logprobs=tuple(top for _, _, top in sampled),
            score_logprobs=np.array(
                [logprobs[t] for logprobs, t in zip(scored, plan.score_targets, strict=True)], dtype=np.float32
            ),
            score_top=(
                np.array(likeliest, dtype=np.int32).reshape(len(scored), most),
                np.array(
                    [logprobs[best] for logprobs, best in zip(scored, likeliest, strict=True)], dtype=np.float32
                ).reshape(len(scored), most),
            ),
        )

    def _sample(
        self, plan: StepPlan, index: int, mask_row: int
    ) -> tuple[int, float, tuple[Int32Array, npt.NDArray[np.float32]] | None]:
        row, position = int(plan.sample_rows[index]), int(plan.output_positions[index])
        context = self._context(plan, row)
        state = self._slots[int(plan.slots[row])]
        params = state.setup.params
        allowed = everything() if mask_row == UNCONSTRAINED else unpack(self._masks[mask_row])
        allowed = held_back(allowed, params, state.setup.end_ids.tolist(), position)
        output = state.known[len(state.setup.prompt_ids) :]
        drawn = self.model.draw(context, allowed, random_stream(params, position, output))
        state.known.append(drawn)
        if params.logprobs is None:
            return drawn, float("nan"), None
        logprobs = self.model.logprobs(context)
        best = np.argsort(-logprobs, kind="stable")[: params.logprobs].astype(np.int32)
        return drawn, float(logprobs[drawn]), (best, logprobs[best]) if params.logprobs else None

    def _scored(self, plan: StepPlan) -> list[npt.NDArray[np.float32]]:
        """For each scored token, the log-probabilities of the vocabulary in its place."""
        rows = np.searchsorted(plan.query_indptr, plan.score_tokens, side="right") - 1
        return [
            self.model.logprobs(self._context(plan, int(row))[: plan.positions[flat] + 1])
            for row, flat in zip(rows, plan.score_tokens, strict=True)
        ]
