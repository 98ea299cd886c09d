"""`select` against brute force: every whole continuation scored by transformers on its own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.wire import run_tree

from palmette.runtime.engine import Engine
from palmette.runtime.program import Node, Select, Selected, SelectMethod, Text

PROMPTS = 200
CLOSE = 2e-3
"""Mean log-probabilities nearer than this may be ordered either way by rounding."""

pytestmark = pytest.mark.default_model

SUBJECTS = (
    "The cat",
    "Our new engine",
    "A tall tree",
    "Paris",
    "My answer",
    "Seven",
    "She",
    "Das Haus",
    "東京",
    "🙂 mood",
)
VERBS = (" is", " was never", " eats", ":", " likes ", " =", ' said "', "", "\n", " can be")
OPTIONS = (
    "red", " red", "redder", " green", "true", "false", " True", "yes", "no", "not sure", "42", "421", " 4", "a", "ab",
    " happy", "unhappy", "!", "...", "é", "🙂", "京", " the end of the story", "\n", "  ", "ing", "s", "'s",
)  # fmt: skip

SHARING = (
    " the book", " the book of the day", " the", " the book", " a book about trees", " a book about palms",
    " a book", " nothing at all", " nothing", " a bookcase", "ings of the book",
)  # fmt: skip


def random_selects(rng: np.random.Generator) -> list[tuple[str, tuple[str, ...]]]:
    """Prompts with two to five distinct options each; some end in a space, some merge with an option."""
    openings = ["".join(pair) for pair in itertools.product(SUBJECTS, VERBS)]
    prompts = [str(rng.choice(openings)) for _ in range(PROMPTS)]
    return [(p, tuple(rng.choice(OPTIONS, size=rng.integers(2, 6), replace=False).tolist())) for p in prompts]


class BruteForce:
    """Scores of whole continuations from full forward passes over the joint tokenization."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.start: int = self._tokenizer.bos_token_id

    def means(self, prompt: str, options: tuple[str, ...]) -> list[float]:
        """Mean log-probability of each option's tokens from the first one that any option does not share."""
        alone = self.ids(prompt)
        joint = [self.ids(prompt + option) for option in options]
        shared = min(_shared(alone, ids) for ids in joint)
        scored = [(ids, shared) if shared else ([self.start, *ids], 1) for ids in joint]
        return [float(np.mean(self.logprobs(ids, first))) for ids, first in scored]

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return token_ids

    def logprobs(self, ids: list[int], first: int) -> list[float]:
        """The log-probability of each token from `first` on."""
        with self._torch.inference_mode():
            logits = self._model(self._torch.tensor([ids])).logits[0].log_softmax(-1)
        return [float(logits[i - 1, ids[i]]) for i in range(first, len(ids))]


def _shared(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_select_equals_brute_force(default_engine: Engine, default_model_folder: Path) -> None:
    """200 random prompts: the scores are those of brute force, and so is the choice."""
    selects = random_selects(np.random.default_rng(3))
    nodes: list[Node] = []
    for index, (prompt, options) in enumerate(selects):
        nodes += [Text(2 * index, None, prompt), Select(2 * index + 1, 2 * index, options)]
    done = run_tree(default_engine, nodes).done
    brute = BruteForce(default_model_folder)
    for index, (prompt, options) in enumerate(selects):
        selected = done[2 * index + 1]
        assert isinstance(selected, Selected), selected
        expected = brute.means(prompt, options)
        means = [float(np.mean(score.logprobs)) for score in selected.scores]
        assert means == pytest.approx(expected, abs=CLOSE), (prompt, options)
        assert expected[selected.choice] >= max(expected) - CLOSE, (prompt, options)


@pytest.mark.parametrize("method", ["token_length_normalized", "unconditional_likelihood_normalized"])
def test_choices_that_share_their_beginnings(
    default_engine: Engine, default_model_folder: Path, method: SelectMethod
) -> None:
    """Choices that part at any token, begin others or come twice: every token's score is that of brute force."""
    prompt = "Q: What should I read next?\nA: You should read"
    selected = run_tree(default_engine, [Text(0, None, prompt), Select(1, 0, SHARING, method)]).done[1]
    assert isinstance(selected, Selected)
    brute = BruteForce(default_model_folder)
    joint = [brute.ids(prompt + choice) for choice in SHARING]
    for ids, score in zip(joint, selected.scores, strict=True):
        assert tuple(ids[selected.prompt_tokens :]) == score.token_ids
        assert score.logprobs == pytest.approx(brute.logprobs(ids, selected.prompt_tokens), abs=CLOSE)
        if method == "unconditional_likelihood_normalized":
            alone = brute.logprobs([brute.start, *score.token_ids], 1)
            assert score.unconditional == pytest.approx(alone, abs=CLOSE)
    assert selected.scores[3] == selected.scores[0]
    assert sum(usage.computed + usage.reused for usage in selected.usage) < sum(map(len, joint)) / 4
