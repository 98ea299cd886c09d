"""Jobs: the requests of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from palmette.constrained.errors import GrammarError
from palmette.runtime.context import Context
from palmette.runtime.errors import RequestError
from palmette.runtime.jobs import Workplace, job_of
from palmette.runtime.program import Generate, Select
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
    """The unconditional method scores each a second time behind the start token alone."""
    job = job_of(Select(4, 0, (" a", " b"), "unconditional_likelihood_normalized"), CONTEXT, workplace)
    assert [request.id for request in job.requests] == ["p0/4.0", "p0/4.1", "p0/4.0u", "p0/4.1u"]
    assert {request.kind for request in job.requests} == {"score"}
    assert job.failure is None


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
