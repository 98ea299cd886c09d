"""A tree of texts on a model runner, against each text alone."""

from __future__ import annotations

import numpy as np
from tests.fake_runner import ids
from tests.fakes import make_score
from tests.step_plans import PlannedRow, StepPlanner

from palmette.runtime.choice_tree import ChoiceTree
from palmette.runtime.model_runner import ModelRunner
from palmette.runtime.step_builder import Row, build_plan


def check_tree(runner: ModelRunner, *, atol: float) -> None:
    """Raise AssertionError unless texts that begin alike, scored as one tree in one step, score as each does alone."""
    size, rng = runner.page_size, np.random.default_rng(5)
    prompt = rng.integers(3, 300, 37).tolist()
    tails = [rng.integers(3, 6, rng.integers(1, 20)).tolist() for _ in range(12)]
    request = make_score("s", [prompt + tail for tail in tails], len(prompt), page_size=size)
    request.slot = 3
    pages = rng.permutation(runner.num_pages)[: request.pages_for(request.end, size)]
    request.page_table.pages.extend(pages.astype(np.int32))
    plan = build_plan(1, [Row(request, request.end)], size)
    assert len(plan.seq_lens) > 5
    assert len(set(plan.score_tokens.tolist())) < len(plan.score_tokens)
    found = runner.launch(plan).result().score_logprobs
    of_text = ChoiceTree.of([ids(*prompt, *tail) for tail in tails], len(prompt)).scores_of
    for tail, scores in zip(tails, of_text, strict=True):
        planner = StepPlanner(runner.num_pages, size)
        text = prompt + tail
        pairs = [(place, text[place + 1]) for place in range(len(prompt) - 1, len(text) - 1)]
        row = PlannedRow(planner.request(text, most_tokens=len(text)), text, sample=False, score=pairs)
        alone = runner.launch(planner.plan([row])).result().score_logprobs
        np.testing.assert_allclose(found[scores], alone, atol=atol)
