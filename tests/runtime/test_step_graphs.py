"""Recorded steps, on a tape of torch's operations: padded, cut into pieces, and given up where recording fails."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.choice_trees import check_tree
from tests.step_plans import PlannedRow, StepPlanner
from tests.step_tape import TapedAttention, TapeRecorder
from tests.tiny_models import tiny_config, write_tiny_model

from palmette.runtime.attention.torch_native import TorchNativeAttention
from palmette.runtime.batch import FROM_SLOT, StepResult
from palmette.runtime.cuda_graph import MOST_MIXED_TOKENS, MOST_TOKENS, padded_size, recorded_bytes
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.placement import Placement
from palmette.runtime.model_runner import ModelRunner
from palmette.runtime.models import CausalLM, ModelConfig
from palmette.runtime.sampler import Sampler
from palmette.runtime.weights import open_checkpoint

_CONTEXT = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    """In float64, which torch's operators alone compute, and in which no order of additions decides a token."""
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("model"), tiny_config())
    return open_checkpoint(folder).load(Placement(dtype=torch.float64))


def runner_of(model: CausalLM, recorder: TapeRecorder | None, *, decodes: bool = True) -> ModelRunner:
    storage = KVStorage(model.config, model.placement, num_pages=128, page_size=8)
    for memory in (*storage.keys, *storage.values):
        memory.fill_(torch.nan)  # what was not written must not be read
    attention = TapedAttention(storage) if decodes else TorchNativeAttention(storage)
    sampler = Sampler(model.config.vocab_size, 32, 1, "cpu")
    length = None if recorder is None else _CONTEXT
    return ModelRunner(model, storage, sampler, attention=attention, context_length=length, recorder=recorder)


def some_steps(runner: ModelRunner, lengths: list[int], steps: int = 8) -> list[StepResult]:
    """Prompts in one step, then decodes; near the end a step of more tokens, and one that samples only some rows."""
    rng = np.random.default_rng(0)
    planner, results = StepPlanner(runner.num_pages, runner.page_size), []
    requests = [planner.request(rng.integers(3, 300, length).tolist(), most_tokens=_CONTEXT) for length in lengths]
    for step in range(steps):
        rows = [PlannedRow(each, each.prompt if step == 0 else [FROM_SLOT]) for each in requests]
        if step == steps - 3:
            rows[-1] = PlannedRow(requests[-1], [7, 8], score=[(0, 8), (1, 9)], top=2)
        if step == steps - 2:
            rows = [PlannedRow(each, [5 + i], sample=i % 2 == 1) for i, each in enumerate(requests)]
        if step == steps - 1:
            rows = [PlannedRow(each, [6], sample=False, score=[(0, 9)]) for each in requests]
        results.append(runner.launch(planner.plan(rows)).result())
    return results


def assert_equal(found: list[StepResult], expected: list[StepResult]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(one.score_logprobs, other.score_logprobs, atol=1e-6)
        assert one.score_top[0].tolist() == other.score_top[0].tolist()


@pytest.mark.parametrize("lengths", [[1], [5], [1, 1, 1], [3, 20, 7, 1, 9], list(range(1, 12))])
@pytest.mark.parametrize("decodes", [True, False])
def test_replayed_steps_equal_launched_ones(
    model: CausalLM, caplog: pytest.LogCaptureFixture, lengths: list[int], decodes: bool
) -> None:
    """Decodes in one stretch, other steps in pieces, padded, and recorded with other rows than they are replayed."""
    expected = some_steps(runner_of(model, None), lengths)
    recorder = TapeRecorder()
    runner = runner_of(model, recorder, decodes=decodes)
    assert_equal(some_steps(runner, lengths), expected)
    begun = recorder.begun
    assert begun > 0
    assert_equal(some_steps(runner, lengths), expected)
    assert recorder.begun == begun, "every size was recorded once"
    assert not caplog.records


def test_sizes_are_recorded_once_and_decodes_whole(model: CausalLM) -> None:
    """Five, six and seven decodes share a recording of one stretch; a step of two tokens a row is in pieces."""
    recorder = TapeRecorder()
    runner = runner_of(model, recorder)
    for rows in (5, 6, 7):
        planner = StepPlanner(runner.num_pages, runner.page_size)
        requests = [planner.request([4], most_tokens=2) for _ in range(rows)]
        runner.launch(planner.plan([PlannedRow(each, each.prompt) for each in requests])).result()
    assert recorder.begun == 1
    planner = StepPlanner(runner.num_pages, runner.page_size)
    runner.launch(planner.plan([PlannedRow(planner.request([4, 5], most_tokens=2), [4, 5])])).result()
    assert recorder.begun == 1 + model.config.num_layers + 1


@pytest.mark.parametrize("decodes", [True, False])
def test_padding_writes_to_no_page_of_the_pool(model: CausalLM, decodes: bool) -> None:
    """Rows that fill a recorded step up, recorded and replayed, touch the spare page alone: others' pages stay."""
    runner = runner_of(model, TapeRecorder(), decodes=decodes)
    planner = StepPlanner(runner.num_pages, runner.page_size)
    requests = [planner.request([4], most_tokens=4) for _ in range(5)]  # padded to 8
    for step in range(4):
        rows = [PlannedRow(each, each.prompt if step == 0 else [FROM_SLOT]) for each in requests]
        runner.launch(planner.plan(rows)).result()
    storage = runner.storage
    theirs = torch.zeros(storage.num_pages * storage.page_size, dtype=torch.bool)
    for request in requests:
        theirs[request.pages[0] * storage.page_size :][:4] = True
    for memory in (*storage.keys, *storage.values):
        written = ~memory[: len(theirs)].isnan().all(2).all(1)
        assert torch.equal(written, theirs)


def test_the_largest_decodes_are_made_room_for_first(model: CausalLM) -> None:
    """Backends share memory between sizes where the largest comes first; no context is longer than the pool."""
    runner = runner_of(model, TapeRecorder())
    attention = runner._attention
    assert isinstance(attention, TapedAttention)
    assert attention.asked == [(32, _CONTEXT)]
    small = KVStorage(model.config, model.placement, num_pages=2, page_size=8)
    attention = TapedAttention(small)
    sampler = Sampler(model.config.vocab_size, 3, 1, "cpu")
    ModelRunner(model, small, sampler, attention=attention, context_length=_CONTEXT, recorder=TapeRecorder())
    assert attention.asked == [(4, 16)]


def test_without_room_for_the_largest_decodes_smaller_ones_are_recorded(
    model: CausalLM, caplog: pytest.LogCaptureFixture
) -> None:
    """An attention backend that has no memory for so many rows fails the size that asks for them, alone."""
    storage = KVStorage(model.config, model.placement, num_pages=128, page_size=8)
    sampler = Sampler(model.config.vocab_size, 32, 1, "cpu")
    attention, recorder = TapedAttention(storage, most_rows=8), TapeRecorder()
    runner = ModelRunner(model, storage, sampler, attention=attention, context_length=_CONTEXT, recorder=recorder)
    for rows, begun in ((3, 1), (9, 1 + model.config.num_layers + 1), (4, model.config.num_layers + 2)):
        planner = StepPlanner(runner.num_pages, runner.page_size)
        requests = [planner.request([4], most_tokens=2) for _ in range(rows)]
        runner.launch(planner.plan([PlannedRow(each, each.prompt) for each in requests])).result()
        assert recorder.begun == begun
    (record,) = caplog.records
    assert "no memory for the rows" in record.message


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_size_that_cannot_be_recorded_is_launched(
    model: CausalLM, caplog: pytest.LogCaptureFixture, fails_at: int
) -> None:
    """The step and all later ones of its size give what they should; it is told once, and other sizes are recorded."""
    lengths = [2, 9]
    recorder = TapeRecorder(fails_at)
    runner = runner_of(model, recorder)
    with caplog.at_level(logging.WARNING):
        assert_equal(some_steps(runner, lengths), some_steps(runner_of(model, None), lengths))
        begun = recorder.begun
        assert_equal(some_steps(runner, lengths), some_steps(runner_of(model, None), lengths))
    assert recorder.begun == begun > fails_at
    (record,) = caplog.records
    assert "could not be recorded as a CUDA graph" in record.message
    assert "no memory for the recording" in record.message


def test_a_tree_is_scored_by_recorded_steps(model: CausalLM, caplog: pytest.LogCaptureFixture) -> None:
    """Its limbs read what other rows of the step write, while the step is recorded and when it is replayed."""
    recorder = TapeRecorder()
    runner = runner_of(model, recorder)
    check_tree(runner, atol=1e-6)
    begun = recorder.begun
    check_tree(runner, atol=1e-6)
    assert recorder.begun == begun > 0
    assert not caplog.records


def test_a_step_of_more_rows_than_slots_is_no_decode_step(model: CausalLM) -> None:
    """Limbs of one token share a slot. Where none of them is scored any more, the step is like one of decodes."""
    planner, results = StepPlanner(128, 8), []
    plan = planner.plan([PlannedRow(planner.request([3], most_tokens=1), [3 + i], sample=False) for i in range(40)])
    plan = replace(plan, slots=np.zeros_like(plan.slots), setups=())
    for recorder in (None, TapeRecorder()):
        runner = runner_of(model, recorder)
        results.append(runner.launch(plan).result())
        assert recorder is None or recorder.begun > 1, "in pieces"
    assert not any(len(result.token_ids) for result in results)


@given(st.integers(1, MOST_TOKENS))
def test_padded_sizes_hold_their_tokens_and_little_more(tokens: int) -> None:
    """A size is its own padded size, grows with the tokens, and is at most a quarter larger, or eight."""
    size = padded_size(tokens)
    assert tokens <= size <= max(8, tokens + 8, tokens * 1.25)
    assert padded_size(size) == size <= MOST_TOKENS
    assert tokens == 1 or padded_size(tokens - 1) <= size
    assert tokens > MOST_MIXED_TOKENS or size <= MOST_MIXED_TOKENS


def test_recorded_steps_are_as_large_as_their_logits_or_their_layers() -> None:
    """Logits of every row that there may be, where the vocabulary is large; otherwise 512 tokens in an MLP."""
    wide = ModelConfig.from_dict(tiny_config(vocab_size=1_000_000), source="test")
    assert 64 * 1_000_000 * 4 <= recorded_bytes(wide, Placement(), 60) < 64 * 1_001_000 * 4
    small = ModelConfig.from_dict(tiny_config(), source="test")
    assert recorded_bytes(small, Placement(), 1) == recorded_bytes(small, Placement(), 9) > 0
