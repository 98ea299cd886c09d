"""How many tokens selects compute, counted at the model of a real engine."""

from __future__ import annotations

import pytest
from tests.wire import run_tree

from palmette.runtime.batch import StepPlan
from palmette.runtime.context import Context
from palmette.runtime.engine import Engine
from palmette.runtime.model_runner import ModelRunner
from palmette.runtime.program import Node, Select, Selected, Text
from palmette.runtime.runner_step import RunnerStep

SHOTS = "".join(f"There were {i} branches on the tree. Held: {'yes' if i % 3 else 'no'}\n" for i in range(4))
CHOICES = ("yes", "yes and no", "no", "no, it is held")


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[StepPlan]:
    """The plans of all steps that are launched from now on."""
    launched: list[StepPlan] = []
    launch = ModelRunner.launch

    def kept(runner: ModelRunner, plan: StepPlan) -> RunnerStep:
        launched.append(plan)
        return launch(runner, plan)

    monkeypatch.setattr(ModelRunner, "launch", kept)
    return launched


def prompts() -> list[str]:
    """Questions that begin differently, after the same examples."""
    return [f"{SHOTS}{letter * 2} was in the {letter} of it. Held: " for letter in "abcdefghijklmnopqrstuvwx"]


def fewest(engine: Engine, asked: list[str]) -> int:
    """How many tokens some token that is scored comes after: as a tree of everything that is asked has them."""
    needed: set[tuple[int, ...]] = set()
    for prompt in asked:
        for choice in CHOICES:
            ids = Context().with_text(prompt + choice, owner=0).encode(engine._tokenizer).ids.tolist()
            needed |= {tuple(ids[:end]) for end in range(1, len(ids))}
    return len(needed)


def test_selects_of_a_batch_compute_what_they_share_once(tiny_engine: Engine, plans: list[StepPlan]) -> None:
    """Four choices of many questions after common examples: at most 5 % more tokens than there must be."""
    tiny_engine.flush_cache()
    asked = prompts()
    nodes: list[Node] = []
    for index, prompt in enumerate(asked):
        nodes += [Text(2 * index, None, prompt), Select(2 * index + 1, 2 * index, CHOICES)]
    done = run_tree(tiny_engine, nodes).done
    assert all(isinstance(done[2 * index + 1], Selected) for index in range(len(asked)))
    computed = sum(len(plan.token_ids) for plan in plans)
    usage = [usage for event in done.values() if isinstance(event, Selected) for usage in event.usage]
    assert computed == sum(each.computed for each in usage)
    assert computed <= 1.05 * fewest(tiny_engine, asked)


def test_a_select_alone_is_one_step_of_the_fewest_tokens(tiny_engine: Engine, plans: list[StepPlan]) -> None:
    """The prompt's last logits serve the first token of every choice."""
    tiny_engine.flush_cache()
    prompt = prompts()[0]
    run_tree(tiny_engine, [Text(0, None, prompt), Select(1, 0, CHOICES)])
    (plan,) = plans
    assert len(plan.token_ids) == fewest(tiny_engine, [prompt])
