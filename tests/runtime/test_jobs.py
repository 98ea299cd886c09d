"""Jobs: the requests of a node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from palmette.constrained.errors import GrammarError
from palmette.runtime.context import Context
from palmette.runtime.errors import RequestError
from palmette.runtime.jobs import Workplace, job_of
from palmette.runtime.messages import RequestEnd
from palmette.runtime.program import Generate, Select, Selected
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.stops import compiled_stops
from palmette.runtime.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def workplace(tiny_model_folder: Path) -> Workplace:
    return Workplace("p0", Tokenizer.load(tiny_model_folder), lambda: (1 << 64) - 1)


CONTEXT = Context().with_text("It is", owner=0)


def test_each_answer_has_a_seed_of_its_own_and_the_first_scores_the_prompt(workplace: Workplace) -> None:
    """Seeds count up from the one that is named or drawn, and the prompt is scored once."""
    job = job_of(Generate(4, 0, SamplingParams(prompt_logprobs=3), n=3), CONTEXT, workplace)
    assert [request.id for request in job.requests] == ["p0/4.0", "p0/4.1", "p0/4.2"]
    assert [request.params.seed for request in job.requests] == [(1 << 64) - 1, 0, 1]
    assert [request.params.prompt_logprobs for request in job.requests] == [3, None, None]


def test_a_select_scores_every_choice(workplace: Workplace) -> None:
    """One request scores all of them, and for the unconditional method another does behind the start token alone."""
    job = job_of(Select(4, 0, (" a", " b"), "unconditional_likelihood_normalized"), CONTEXT, workplace)
    assert [request.id for request in job.requests] == ["p0/4.0", "p0/4.0u"]
    assert {request.kind for request in job.requests} == {"score"}
    prompts = [memoryview(request.prompt_ids).cast("i").tolist() for request in job.requests]
    assert prompts[0][:2] == CONTEXT.encode(workplace.tokenizer).ids.tolist()
    assert prompts[1][0] == workplace.tokenizer.start_id
    assert job.failure is None


def test_the_scores_of_a_tree_reach_their_choices(workplace: Workplace) -> None:
    """Shared tokens have one score; a choice that comes twice has the same scores, and of equals the first is taken."""
    choices = (" there", " the", " there", " then")
    job = job_of(Select(4, 0, choices, "unconditional_likelihood_normalized"), CONTEXT, workplace)
    for request in job.requests:
        assert request.tree is not None
        scores = np.frombuffer(request.tree.scores, dtype=np.int32).reshape(-1, 2)
        job.take_end(request.id, RequestEnd(score_logprobs=tuple(-float(target) for _, target in scores.tolist())))
    event = job.outcome(0.5).event
    assert isinstance(event, Selected)
    encoded = [CONTEXT.with_text(choice, owner=4).encode(workplace.tokenizer).ids for choice in choices]
    assert [score.token_ids for score in event.scores] == [
        tuple(ids[event.prompt_tokens :].tolist()) for ids in encoded
    ]
    for score in event.scores:
        assert score.logprobs == tuple(-float(token_id) for token_id in score.token_ids)
        assert score.unconditional == score.logprobs
    assert event.choice == 0


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (Generate(1, 0, SamplingParams(), n=0), RequestError),
        (Generate(1, 0, SamplingParams(stop_regex=("(",))), GrammarError),
        (Select(1, 0, ("a", "")), RequestError),
    ],
)
def test_what_cannot_be_served_is_refused(workplace: Workplace, node: Generate | Select, kind: type[Exception]) -> None:
    """Before any request is made."""
    with pytest.raises(kind):
        job_of(node, CONTEXT, workplace)


def test_stop_patterns_are_compiled_once_and_so_are_their_errors() -> None:
    """The engine's thread finds what the client's thread compiled, good or bad."""
    assert compiled_stops(("a+b",)) is compiled_stops(("a+b",))
    assert isinstance(compiled_stops(("(b",)), GrammarError)
    assert compiled_stops(("(b",)) is compiled_stops(("(b",))
