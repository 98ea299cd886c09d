"""Prompt log-probabilities of a real engine against transformers, in any chunks and pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.wire import Listener

from palmette.constrained import Grammar
from palmette.runtime import launch
from palmette.runtime.engine import Engine
from palmette.runtime.program import Completion, Failed, Generate, Generated, Text
from palmette.runtime.sampling_params import SamplingParams

TEXT = "The quick brown fox, she said 12 times, jumps over 🙂 the lazy dog."


@pytest.fixture(scope="module")
def reference(tiny_model_folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model_folder).float().eval()


def complete(engine: Engine, text: str, *, n: int = 1, **params: Any) -> tuple[Completion, ...]:
    listener = Listener()
    session = engine.open(listener)
    sampling = SamplingParams(**{"temperature": 0, "max_tokens": 4, "ignore_eos": True, **params})
    session.extend([Text(0, None, text), Generate(1, 0, sampling, n=n)])
    listener.wait([1])
    session.close()
    event = listener.done[1]
    assert isinstance(event, Generated), event
    return event.completions


def check(engine: Engine, reference: Any, completion: Completion, *, first: int, count: int) -> None:
    """Raise AssertionError unless the entries are transformers' own."""
    import torch

    ids = engine.tokenizer.encode_text(TEXT)
    with torch.inference_mode():
        known = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
    entries = completion.prompt_logprobs
    assert entries is not None
    assert len(entries) == len(ids) - first
    for place, entry in enumerate(entries, first):
        if place == 0:
            assert entry is None
            continue
        assert entry is not None
        assert entry.token_id == ids[place]
        assert entry.logprob == pytest.approx(float(known[place - 1, ids[place]]), abs=2e-5)
        best = known[place - 1, : len(engine.tokenizer.token_bytes)].topk(count)  # beyond are no tokens
        assert [each.token_id for each in entry.top] == best.indices.tolist()
        assert [each.logprob for each in entry.top] == pytest.approx(best.values.tolist(), abs=2e-5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"chunk_size": 3}, {"page_size": 16}, {"page_size": 4, "chunk_size": 7}, {"radix_cache": False}],
)
def test_they_equal_those_of_transformers(tiny_model_folder: Path, reference: Any, settings: dict[str, Any]) -> None:
    """From any first place, on a cold and on a warm cache, alone and beside others."""
    with launch(str(tiny_model_folder), seed=0, max_total_tokens=4_000, processes=False, **settings) as engine:
        for first, count in ((0, 3), (17, 0), (1, 1)):
            (completion,) = complete(engine, TEXT, prompt_logprobs=count, prompt_logprobs_from=first)
            check(engine, reference, completion, first=first, count=count)
        assert complete(engine, TEXT)[0].text == completion.text


def test_all_answers_share_what_is_computed_once(tiny_engine: Engine, reference: Any) -> None:
    """n = 3 scores the prompt for the first answer, and every completion has it."""
    tiny_engine.flush_cache()
    completions = complete(tiny_engine, TEXT, n=3, temperature=1, seed=1, prompt_logprobs=2)
    for completion in completions:
        check(tiny_engine, reference, completion, first=0, count=2)
    assert completions[0].cached_tokens == 0
    assert all(completion.cached_tokens >= completion.prompt_tokens - 1 for completion in completions[1:])


def test_texts_are_the_tokens_own(tiny_engine: Engine) -> None:
    """Texts of prompt tokens join to the prompt where no character is split; special tokens have their names."""
    (completion,) = complete(
        tiny_engine, "A tree has 7 names", prompt_logprobs=50, logprobs=50, return_text_in_logprobs=True
    )
    assert completion.prompt_logprobs is not None
    assert completion.logprobs is not None
    entries = [entry for entry in completion.prompt_logprobs if entry is not None]
    assert "A tree has 7 names".endswith("".join(entry.text or "" for entry in entries))
    for entry in (*entries, *completion.logprobs):
        assert entry.text == tiny_engine.tokenizer.token_text(entry.token_id)
        for each in entry.top:
            assert each.text == tiny_engine.tokenizer.token_text(each.token_id)
    assert tiny_engine.tokenizer.token_text(0) == "<|endoftext|>"


def test_a_place_past_the_prompt_fails_with_the_numbers(tiny_engine: Engine) -> None:
    """The node's error names the place and the prompt's length."""
    listener = Listener()
    session = tiny_engine.open(listener)
    params = SamplingParams(prompt_logprobs=1, prompt_logprobs_from=500)
    session.extend([Text(0, None, "short"), Generate(1, 0, params, n=2)])
    listener.wait([1])
    session.close()
    event = listener.done[1]
    assert isinstance(event, Failed)
    assert event.kind == "RequestError"
    assert "prompt_logprobs_from=500 is past the prompt of" in event.message


def test_a_grammar_of_nothing_ends_alike_with_and_without_scores(tiny_engine: Engine) -> None:
    """Where the grammar is complete from the start, the prompt is scored and no token is taken for it."""
    ends = []
    for scores in (None, 0):
        listener = Listener()
        session = tiny_engine.open(listener)
        params = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=scores)
        session.extend([Text(0, None, TEXT), Generate(1, 0, params, Grammar.regex(""))])
        listener.wait([1])
        session.close()
        event = listener.done[1]
        assert isinstance(event, Generated), event
        (completion,) = event.completions
        assert (completion.prompt_logprobs is None) == (scores is None)
        ends.append((completion.text, completion.token_ids, completion.finish_reason, completion.completion_tokens))
    assert ends == [("", (), "grammar", 0)] * 2
