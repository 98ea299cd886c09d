"""Greedy text equals transformers' float32, however requests are batched, cached, chunked and paged."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tiny_models import tiny_mistral_config, tiny_tokenizer_spec, write_tiny_model
from tests.wire import complete

from palmette.runtime import launch
from palmette.runtime.sampling_params import SamplingParams

NEAR_TIE = 1e-4
"""Where the two best logits are nearer than this, either token is a right answer (DESIGN section 4)."""

FACTORS = {"together": (True, False), "radix_cache": (True, False), "chunk_size": (64, 4096), "page_size": (1, 16)}
MATRIX = [dict(zip(FACTORS, values, strict=True)) for values in itertools.product(*FACTORS.values())]
PAIRWISE = [MATRIX[index] for index in (0, 3, 5, 9, 14)]
"""Five of the sixteen: every pair of settings of any two factors occurs."""

WORDS = (
    "the", "a", "river", "old", "green", "castle", "walks", "over", "under", "seven", "1987", "quickly,", "because",
    "“stone”", "café", "東京", "🙂", "and", "then", "she", "said:", "'no'", "to", "every", "machine", "that", "counted",
    "42", "birds;", "however", "the", "list", "(of", "names)", "was", "longer", "than", "x", "=", "y", "+", "3.\n",
)  # fmt: skip


@dataclass(frozen=True)
class Reference:
    """What transformers generates: per prompt the token ids, and the gap of the two best logits at each."""

    token_ids: list[list[int]]
    gaps: list[list[float]]


def write_prompts(encode: Any, lengths: Sequence[int]) -> list[str]:
    """Texts of about these many tokens; the even ones are beginnings of one text, so that they share prefixes."""
    rng = np.random.default_rng(7)
    story = " ".join(rng.choice(WORDS, size=max(lengths)))
    prompts = []
    for index, length in enumerate(lengths):
        words = story if index % 2 == 0 else " ".join(rng.choice(WORDS, size=length))
        prompts.append(_cut(encode, words, length))
    return prompts


def _cut(encode: Any, text: str, length: int) -> str:
    """The longest beginning of `text` with at most `length` tokens (at least one character)."""
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(encode(text[:middle])) <= length else (low, middle - 1)
    return text[:low]


def reference(folder: Path, prompts: Sequence[str], new_tokens: int) -> Reference:
    """Greedy continuations by transformers in float32, one prompt at a time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    result = Reference([], [])
    for prompt in prompts:
        ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
        best = [logits[0].topk(2).values for logits in output.logits]
        result.token_ids.append(output.sequences[0, ids.shape[1] :].tolist())
        result.gaps.append([float(pair[0] - pair[1]) for pair in best])
    return result


def differences(tokenizer: Any, texts: Sequence[str], expected: Reference) -> tuple[list[int], list[int]]:
    """Indices of prompts with another text than the reference's: those with a near tie, and the real ones."""
    ties: list[int] = []
    wrong: list[int] = []
    for index, (text, ids, gaps) in enumerate(zip(texts, expected.token_ids, expected.gaps, strict=True)):
        if text != tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False):
            (ties if min(gaps) < NEAR_TIE else wrong).append(index)
    return ties, wrong


class Case:
    """A model folder with its prompts and transformers' answers to them."""

    def __init__(self, folder: Path, lengths: Sequence[int], new_tokens: int) -> None:
        from transformers import AutoTokenizer

        self.folder = folder
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.prompts = write_prompts(self.tokenizer.encode, lengths)
        self.params = SamplingParams(temperature=0, max_tokens=new_tokens)
        self.expected = reference(folder, self.prompts, new_tokens)

    def check(self, *, together: bool, **settings: Any) -> None:
        with launch(str(self.folder), max_total_tokens=24_000, processes=False, **settings) as engine:
            texts = complete(engine, self.prompts, self.params, together=together)
        ties, wrong = differences(self.tokenizer, texts, self.expected)
        assert not wrong, f"{len(wrong)} answers differ (and {len(ties)} near ties: {ties}): {wrong}"
        assert len(ties) <= 2, f"too many near ties to say anything: {ties}"


@pytest.fixture(scope="module")
def smollm(default_model_folder: Path) -> Case:
    return Case(default_model_folder, np.geomspace(1, 1500, 40).astype(int).tolist(), new_tokens=8)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Case:
    vocab_size = len(tiny_tokenizer_spec()["model"]["vocab"])
    config = tiny_mistral_config(sliding_window=24, vocab_size=vocab_size)
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"), config)
    return Case(folder, np.geomspace(1, 400, 40).astype(int).tolist(), new_tokens=24)


@pytest.mark.xdist_group("smollm2-reference")  # transformers' answers take a minute: one worker makes them
@pytest.mark.default_model
@pytest.mark.parametrize("settings", PAIRWISE, ids=str)
def test_smollm2_equals_transformers(smollm: Case, settings: dict[str, Any]) -> None:
    """SmolLM2 answers 40 prompts of 1 to 1500 tokens as transformers does."""
    smollm.check(**settings)


@pytest.mark.parametrize("settings", MATRIX, ids=str)
def test_a_tiny_model_with_grouped_heads_and_a_sliding_window_equals_transformers(
    tiny: Case, settings: dict[str, Any]
) -> None:
    """A tiny random model answers as transformers does under every combination of settings."""
    tiny.check(**settings)
