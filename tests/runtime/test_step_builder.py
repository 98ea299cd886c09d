"""Plans of steps: arrays that a runner can trust."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.fake_grammar import scripted_chain
from tests.fake_runner import END_ID, VOCABULARY, ids
from tests.fakes import make_request

from palmette.runtime.request import Request
from palmette.runtime.step_builder import Row, build_masks, build_plan


def placed(request: Request, slot: int, pages: Sequence[int], computed: int = 0) -> Request:
    """A request as it runs: with a slot and pages."""
    request.slot = slot
    request.page_table.pages.extend(ids(*pages))
    request.num_computed = computed
    return request


def test_a_mixed_step() -> None:
    """A chunk, a decode and a score in one step, with pages of two tokens."""
    chunk = placed(make_request("a", [10, 11, 12, 13, 14]), 3, [7, 2, 9])
    decode = placed(make_request("b", [20, 21, 22]), 1, [4, 5], computed=3)
    decode.append(23)
    score = placed(make_request("c", [30, 31, 32, 33], kind="score", score_from=2), 0, [1, 8], computed=1)
    rows = [Row(chunk, 3), Row(decode, 1), Row(score, 2)]
    rows[1].mask_row = 6
    plan = build_plan(7, rows, 2)
    assert plan.step == 7
    assert plan.token_ids.tolist() == [10, 11, 12, 23, 31, 32]
    assert plan.positions.tolist() == [0, 1, 2, 3, 1, 2]
    assert plan.kv_slots.tolist() == [14, 15, 4, 11, 3, 16]
    assert plan.query_indptr.tolist() == [0, 3, 4, 6]
    assert plan.page_indptr.tolist() == [0, 2, 4, 6]
    assert plan.page_ids.tolist() == [7, 2, 4, 5, 1, 8]
    assert plan.seq_lens.tolist() == [3, 4, 3]
    assert plan.slots.tolist() == [3, 1, 0]
    assert plan.sample_rows.tolist() == [1]
    assert plan.output_positions.tolist() == [1]
    assert build_masks(rows, None).rows.tolist() == [6]
    assert plan.score_tokens.tolist() == [4, 5]
    assert plan.score_targets.tolist() == [32, 33]
    for name in ("token_ids", "positions", "kv_slots", "query_indptr", "page_indptr", "page_ids", "seq_lens", "slots"):
        assert getattr(plan, name).dtype == np.int32, name


def test_a_plan_is_a_copy() -> None:
    """What happens to a request after planning does not change the plan."""
    request = placed(make_request("a", [10, 11]), 0, [3, 4])
    plan = build_plan(1, [Row(request, 2)], 1)
    request.page_table.pages.view[:] = 9
    request.token_ids[:] = 0
    assert plan.page_ids.tolist() == [3, 4]
    assert plan.token_ids.tolist() == [10, 11]


@pytest.mark.parametrize(
    ("start", "count", "known", "scored"),
    [
        (0, 2, 0, []),
        (0, 3, 0, [0]),
        (2, 3, 0, [0, 1, 2]),
        (0, 5, 2, [2]),  # after a retraction: the first two are known
        (0, 3, 2, []),
    ],
)
def test_scores_by_chunk(start: int, count: int, known: int, scored: list[int]) -> None:
    """Each token from score_from on is scored once, by the chunk that computes the token before it."""
    request = make_request("a", [10, 11, 12, 13, 14, 15], kind="score", score_from=3)
    request.score_logprobs += [-1.0] * known
    request.num_computed = start
    assert list(Row(request, count).scored) == scored


@pytest.mark.parametrize(
    ("first", "start", "count", "scored"),
    [(0, 0, 6, [1, 2, 3, 4, 5]), (0, 2, 3, [3, 4, 5]), (4, 0, 4, [4]), (4, 0, 3, []), (5, 4, 2, [5])],
)
def test_a_prompt_is_scored_on_the_way_to_a_generation(first: int, start: int, count: int, scored: list[int]) -> None:
    """The prompt's last token scores nothing: what follows it is sampled. The likeliest are asked for a place."""
    request = placed(
        make_request("a", [10, 11, 12, 13, 14, 15], prompt_logprobs=2, prompt_logprobs_from=first),
        0,
        [0, 1, 2, 3, 4, 5],
    )
    request.num_computed = start
    row = Row(request, count)
    assert list(row.scored) == scored
    plan = build_plan(1, [row], 1)
    assert (plan.score_targets - 10).tolist() == scored
    assert plan.score_top.tolist() == [2] * len(scored)


def test_setup_carries_the_output_so_far() -> None:
    """On admission the runner learns the output before a retraction, for penalties, and what min_tokens holds back."""
    request = placed(make_request("a", [10, 11], stop_token_ids=(40,)), 2, [0, 1, 2])
    request.append(12)
    request.setup_due = True
    (setup,) = build_plan(1, [Row(request, 3)], 1).setups
    assert setup.slot == 2
    assert setup.prompt_ids.tolist() == [10, 11]
    assert setup.output_ids.tolist() == [12]
    assert setup.end_ids.tolist() == [END_ID, 2, 40]


def test_min_tokens_holds_back_nothing_of_a_grammar() -> None:
    """A grammar that is complete wins over min_tokens."""
    request = placed(make_request("a", [10]), 0, [0])
    request.matcher = scripted_chain("x", [[3]]).matcher()
    request.setup_due = True
    (setup,) = build_plan(1, [Row(request, 1)], 1).setups
    assert not len(setup.end_ids)


def test_mask_updates_travel_with_the_step() -> None:
    """Rows of the mask table are written before the step samples."""
    request = placed(make_request("a", [10]), 0, [0])
    updates = (ids(3), np.zeros((1, VOCABULARY.words), np.uint32))
    assert build_masks([Row(request, 1)], updates).updates is updates
