"""Steps through real tiny models: equal to transformers, however the tokens are cut into steps, rows and pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.choice_trees import check_tree
from tests.step_plans import PlannedRequest, PlannedRow, StepPlanner
from tests.tiny_models import LLAMA3_ROPE, tiny_config, tiny_mistral_config, write_tiny_model

from palmette.runtime import placing
from palmette.runtime.attention import attention_backend
from palmette.runtime.batch import FROM_SLOT, NOT_FINITE, StepResult
from palmette.runtime.config import EngineConfig
from palmette.runtime.errors import ModelLoadError, RequestError
from palmette.runtime.kv_storage import kv_bytes_per_token, pages_for_memory
from palmette.runtime.layers.placement import Placement
from palmette.runtime.model_runner import ModelRunner
from palmette.runtime.models import ModelConfig
from palmette.runtime.placing import place
from palmette.runtime.sampling_params import SamplingParams

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": tiny_config(),
    "tied": tiny_config(tie_word_embeddings=True),
    "biases": tiny_config(attention_bias=True, mlp_bias=True),
    "head-dim": tiny_config(head_dim=16, num_key_value_heads=6),
    "llama3-rope": tiny_config(rope_scaling=LLAMA3_ROPE, rope_theta=500.0),
    "linear-rope": tiny_config(rope_scaling={"type": "linear", "factor": 2.0}),
    "rope-parameters": tiny_config(rope_parameters={"rope_type": "default", "rope_theta": 700.0}),
    "mistral": tiny_mistral_config(),
}


def runner_of(folder: Path, *, page_size: int = 1, tokens: int = 2048) -> ModelRunner:
    settings = EngineConfig(max_total_tokens=tokens, page_size=page_size, mask_rows=4, max_running_requests=16)
    return ModelRunner.load(folder, settings)


def prompt_of(length: int, *, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 360, length)]


def reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def reference_greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    ids = torch.tensor([list(prompt)])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [int(token) for token in out[0, len(prompt) :]]


def reference_log_probs(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """log-probs [N, V] at each position."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([list(ids)])).logits[0]
    return logits.log_softmax(-1)


def all_scores(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Score each token's successor."""
    return [(i, ids[i + 1]) for i in range(len(ids) - 1)]


def greedy(runner: ModelRunner, planner: StepPlanner, request: PlannedRequest, count: int) -> list[int]:
    """Whole prefill, then decode with tokens that only the sampler knows."""
    results = [runner.launch(planner.plan([PlannedRow(request, request.prompt)])).result()]
    results += [runner.launch(planner.plan([PlannedRow(request, [FROM_SLOT])])).result() for _ in range(count - 1)]
    return [int(result.token_ids[0]) for result in results]


def scores_in_chunks(
    runner: ModelRunner, planner: StepPlanner, ids: Sequence[int], chunks: Sequence[int]
) -> np.ndarray:
    """Log-probs of every token after the first, computed in these chunks."""
    request = planner.request(ids, most_tokens=len(ids))
    parts, start = [], 0
    for size in chunks:
        chunk = list(ids[start : start + size])
        pairs = [(i, ids[start + i + 1]) for i in range(len(chunk)) if start + i + 1 < len(ids)]
        plan = planner.plan([PlannedRow(request, chunk, sample=False, score=pairs)])
        parts.append(runner.launch(plan).result().score_logprobs)
        start += size
    return np.concatenate(parts)


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp(request.param), CONFIGS[request.param])


@pytest.fixture(scope="module")
def mistral_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("window"), tiny_mistral_config())


@pytest.fixture(scope="module", params=[1, 16])
def mistral(request: pytest.FixtureRequest, mistral_folder: Path) -> ModelRunner:
    return runner_of(mistral_folder, page_size=request.param)


def test_log_probs_and_greedy_tokens_equal_those_of_transformers(folder: Path) -> None:
    """Every model of the family computes what transformers' float32 does."""
    model, runner = reference(folder), runner_of(folder)
    planner = StepPlanner(runner.num_pages, runner.page_size)
    ids = prompt_of(30)
    expected = reference_log_probs(model, ids)[torch.arange(29), torch.tensor(ids[1:])]
    np.testing.assert_allclose(scores_in_chunks(runner, planner, ids, [30]), expected.numpy(), atol=2e-5)
    request = planner.request(ids, most_tokens=60)
    assert greedy(runner, planner, request, 20) == reference_greedy(model, ids, 20)


@given(cuts=st.sets(st.integers(1, 39)))
@settings(max_examples=15)
def test_any_chunks_give_the_same_log_probs(mistral: ModelRunner, cuts: set[int]) -> None:
    """A prompt computed whole, in chunks, or token by token gives the same, whatever the page size."""
    ids = prompt_of(40)
    edges = [0, *sorted(cuts), 40]
    chunks = np.diff(edges).tolist()
    whole = scores_in_chunks(mistral, StepPlanner(mistral.num_pages, mistral.page_size), ids, [40])
    cut = scores_in_chunks(mistral, StepPlanner(mistral.num_pages, mistral.page_size), ids, chunks)
    np.testing.assert_allclose(cut, whole, atol=2e-5)


@pytest.mark.parametrize("most", [1, 1000])
def test_the_likeliest_tokens_of_scored_places(
    mistral_folder: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Each place has as many as its row asks for, as transformers ranks them, however few logits are made at once."""
    runner = runner_of(mistral_folder)
    monkeypatch.setattr("palmette.runtime.model_runner.LOGITS_AT_ONCE", most * runner.config.vocab_size)
    planner, ids = StepPlanner(runner.num_pages, 1), prompt_of(12)
    requests = [planner.request(ids, most_tokens=12) for _ in range(3)]
    rows = [
        PlannedRow(request, ids, sample=False, score=all_scores(ids), top=top)
        for request, top in zip(requests, (2, 0, 5), strict=True)
    ]
    result = runner.launch(planner.plan(rows)).result()
    ranked = reference_log_probs(reference(mistral_folder), ids)[:-1].topk(5)
    top_ids, top_logprobs = (array.reshape(3, 11, 5) for array in result.score_top)
    for row, count in ((0, 2), (2, 5)):
        assert top_ids[row, :, :count].tolist() == ranked.indices[:, :count].tolist()
        np.testing.assert_allclose(top_logprobs[row, :, :count], ranked.values[:, :count].numpy(), atol=2e-5)


def test_token_by_token_equals_the_whole(mistral: ModelRunner) -> None:
    """Forty steps of one token compute what one step of forty does."""
    ids = prompt_of(40, seed=1)
    planner = StepPlanner(mistral.num_pages, mistral.page_size)
    whole = scores_in_chunks(mistral, planner, ids, [40])
    np.testing.assert_allclose(scores_in_chunks(mistral, planner, ids, [1] * 40), whole, atol=2e-5)


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=9), data=st.data())
@settings(max_examples=15)
def test_rows_of_one_step_do_not_touch_each_other(
    mistral: ModelRunner, lengths: list[int], data: st.DataObject
) -> None:
    """Prefill and decode rows mixed in one step compute what each computes alone."""
    prompts = [prompt_of(length, seed=length) for length in lengths]
    before = [data.draw(st.integers(0, length - 1), label="computed before") for length in lengths]
    planner = StepPlanner(mistral.num_pages, mistral.page_size)
    requests = [planner.request(ids, most_tokens=len(ids)) for ids in prompts]
    for request, done in zip(requests, before, strict=True):
        if done:
            mistral.launch(planner.plan([PlannedRow(request, request.prompt[:done], sample=False)])).result()
    rows = [
        PlannedRow(request, request.prompt[done:], score=[(len(request.prompt) - done - 1, 7)])
        for request, done in zip(requests, before, strict=True)
    ]
    together = mistral.launch(planner.plan(rows)).result()
    for r, ids in enumerate(prompts):
        alone_planner = StepPlanner(mistral.num_pages, mistral.page_size)
        alone_request = alone_planner.request(ids, most_tokens=len(ids))
        row = PlannedRow(alone_request, ids, score=[(len(ids) - 1, 7)])
        alone = mistral.launch(alone_planner.plan([row])).result()
        np.testing.assert_allclose(together.score_logprobs[r], alone.score_logprobs[0], atol=2e-5)
        assert together.token_ids[r] == alone.token_ids[0]


def test_shared_prefix_pages_are_read_not_copied(mistral: ModelRunner) -> None:
    """Two requests whose first pages are the same pages compute what requests with pages of their own do."""
    ids, size = prompt_of(48), mistral.page_size
    planner = StepPlanner(mistral.num_pages, size)
    first = planner.request(ids, most_tokens=64)
    mistral.launch(planner.plan([PlannedRow(first, ids[:32], sample=False)])).result()
    second = planner.request(ids, most_tokens=64)
    second.pages[: 32 // size] = first.pages[: 32 // size]
    second.computed = 32
    rows = [PlannedRow(first, ids[32:]), PlannedRow(second, ids[32:])]
    result = mistral.launch(planner.plan(rows)).result()
    assert result.token_ids[0] == result.token_ids[1]


def test_scores_of_a_long_text_are_made_a_part_at_a_time(mistral: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scoring in small parts gives the same log-probs."""
    ids = prompt_of(100)
    planner = StepPlanner(mistral.num_pages, mistral.page_size)
    whole = scores_in_chunks(mistral, planner, ids, [100])
    monkeypatch.setattr("palmette.runtime.model_runner.LOGITS_AT_ONCE", mistral.config.vocab_size * 7)
    np.testing.assert_allclose(scores_in_chunks(mistral, planner, ids, [100]), whole, atol=2e-5)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("logits", [None, 7])
def test_limbs_of_a_tree_read_what_others_write_in_the_same_step(
    mistral_folder: Path, page_size: int, logits: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that begin alike, scored as one tree in one step, have the log-probs that each has alone."""
    runner = runner_of(mistral_folder, page_size=page_size)
    if logits is not None:
        monkeypatch.setattr("palmette.runtime.model_runner.LOGITS_AT_ONCE", runner.config.vocab_size * logits)
    check_tree(runner, atol=2e-5)


def test_log_probs_of_sampled_tokens_come_back(mistral: ModelRunner) -> None:
    """A request that asks for log-probs gets its token's and the likeliest tokens'."""
    planner = StepPlanner(mistral.num_pages, mistral.page_size, SamplingParams(temperature=0.0, logprobs=3))
    request = planner.request(prompt_of(9), most_tokens=9)
    result = mistral.launch(planner.plan([PlannedRow(request, request.prompt)])).result()
    top = result.top_logprobs[0]
    assert top is not None
    assert top[0].tolist()[0] == result.token_ids[0]
    assert top[1][0] == pytest.approx(float(result.logprobs[0]), abs=1e-5)


def test_forced_tokens_count_for_penalties_in_steps_that_sample_nothing(mistral: ModelRunner) -> None:
    """A token that a chunk without sampling put into the output is penalised like any other."""
    planner = StepPlanner(
        mistral.num_pages, mistral.page_size, SamplingParams(temperature=0.0, frequency_penalty=1000.0)
    )
    request = planner.request(prompt_of(9), most_tokens=20)
    first = int(mistral.launch(planner.plan([PlannedRow(request, request.prompt)])).result().token_ids[0])
    mistral.launch(planner.plan([PlannedRow(request, [first], sample=False)])).result()
    seen = {first}
    for forced in range(3, 8):
        mistral.launch(planner.plan([PlannedRow(request, [forced], sample=False)])).result()
        seen.add(forced)
    token = int(mistral.launch(planner.plan([PlannedRow(request, [9])])).result().token_ids[0])
    assert token not in seen | {9}


def test_a_row_that_is_not_finite_is_marked_and_the_others_are_as_without_it(tmp_path: Path) -> None:
    """NaN in one request is no token and no score, and touches neither the other rows of the step nor later ones."""
    runner = runner_of(write_tiny_model(tmp_path))
    _nan_embedding(runner, 7)
    prompts = [[5, 6, 8], [5, 7, 8], [9, 10, 11]]

    def step(chosen: Sequence[int], planner: StepPlanner) -> StepResult:
        rows = [
            PlannedRow(planner.request(prompts[i], most_tokens=3), prompts[i], score=[(1, prompts[i][2])])
            for i in chosen
        ]
        return runner.launch(planner.plan(rows)).result()

    alone = step([0, 2], StepPlanner(runner.num_pages, 1))
    planner = StepPlanner(runner.num_pages, 1)
    together, later = step([0, 1, 2], planner), step([0, 2], planner)
    assert together.token_ids[1] == NOT_FINITE
    assert np.isnan(together.score_logprobs[1])
    assert together.token_ids[[0, 2]].tolist() == later.token_ids.tolist() == alone.token_ids.tolist()
    np.testing.assert_allclose(together.score_logprobs[[0, 2]], alone.score_logprobs, atol=2e-5)
    np.testing.assert_allclose(later.score_logprobs, alone.score_logprobs, atol=2e-5)


def _nan_embedding(runner: ModelRunner, token_id: int) -> None:
    """Break what the model knows about one token."""
    (name,) = [name for name in runner.model.slots() if "embed" in name]
    runner.model.slots()[name].target[token_id] = torch.nan


@given(memory=st.integers(0, 10**9), page_size=st.integers(1, 64))
def test_pages_never_take_more_memory_than_given(memory: int, page_size: int) -> None:
    """The pool fills the memory to within one page and never beyond."""
    config = ModelConfig.from_dict(tiny_config(), source="test")
    page_bytes = page_size * kv_bytes_per_token(config, Placement())
    pages = pages_for_memory(config, Placement(), memory_bytes=memory, page_size=page_size)
    assert pages * page_bytes <= memory < (pages + 1) * page_bytes


def test_bytes_of_a_token_count_every_layer_key_and_value() -> None:
    """3 layers x (key and value) x 2 heads x 8 x 4 bytes."""
    assert kv_bytes_per_token(ModelConfig.from_dict(tiny_config(), source="test"), Placement()) == 3 * 2 * 2 * 8 * 4


def test_memory_sizes_the_pool_and_too_little_is_refused(tmp_path: Path) -> None:
    """memory_bytes becomes pages; less than one page is the caller's mistake."""
    folder = write_tiny_model(tmp_path)
    runner = ModelRunner.load(folder, EngineConfig(memory_bytes=384 * 100, page_size=4, mask_rows=1))
    assert runner.num_pages == 25
    with pytest.raises(RequestError, match="not one page"):
        ModelRunner.load(folder, EngineConfig(memory_bytes=384, page_size=4, mask_rows=1))


def test_devices_and_dtypes_that_cannot_be_are_refused() -> None:
    """The message names the value and what is known."""
    config = ModelConfig.from_dict(tiny_config(torch_dtype="int8"), source="test")
    with pytest.raises(RequestError, match="'toaster'"):
        place(config, EngineConfig(device="toaster"))
    with pytest.raises(RequestError, match="known: cpu, cuda"):
        place(config, EngineConfig(device="meta"))
    assert place(config, EngineConfig(device="cpu")).dtype == torch.float32
    assert place(config, EngineConfig(device="cpu", dtype="bfloat16")).dtype == torch.bfloat16


def test_unknown_attention_backends_list_the_known(mistral: ModelRunner) -> None:
    """The message names what there is."""
    with pytest.raises(
        RequestError, match="attention_backend must be one of flashinfer, triton, torch_native, cpu, not 'magic'"
    ):
        attention_backend("magic", mistral.storage)


@pytest.mark.default_model
def test_default_model_computes_what_transformers_does(default_model_folder: Path) -> None:
    """SmolLM2's log-probs and greedy tokens equal transformers' float32 on the same folder."""
    from palmette.runtime.tokenizer import Piece, Tokenizer

    model, runner = reference(default_model_folder), runner_of(default_model_folder)
    text = "<|im_start|>user\nName three fruits.<|im_end|>\n<|im_start|>assistant\n"
    ids = Tokenizer.load(default_model_folder).encode([Piece(text, True, 0)], start=True).ids
    planner = StepPlanner(runner.num_pages, runner.page_size)
    expected = reference_log_probs(model, ids)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    np.testing.assert_allclose(scores_in_chunks(runner, planner, ids, [len(ids)]), expected.numpy(), atol=2e-4)
    request = planner.request(ids, most_tokens=100)
    assert greedy(runner, planner, request, 16) == reference_greedy(model, ids, 16)


def test_unknown_dtype_of_a_checkpoint_is_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """dtype "auto" off the CPU takes the checkpoint's own, which must be a float type."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = ModelConfig.from_dict(tiny_config(torch_dtype="int8"), source="test")
    with pytest.raises(ModelLoadError, match="'int8'"):
        place(config, EngineConfig(device="cuda:0"))


def test_a_gpu_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's thread, which has a current device of its own, must take the same."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    config = ModelConfig.from_dict(tiny_config(), source="test")
    assert place(config, EngineConfig(device="cuda")).device == torch.device("cuda:1")
    assert place(config, EngineConfig(device="cuda:0")).device == torch.device("cuda:0")


@pytest.mark.parametrize(("cuda", "advice"), [(None, "is not built for CUDA"), ("13.0", "new enough for CUDA 13.0")])
def test_a_gpu_that_pytorch_cannot_use_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    cuda: str | None,
    advice: str,
) -> None:
    """Where nothing was asked for the CPU computes, and a warning says why; a GPU that was asked for is an error."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(placing, "_DRIVER", tmp_path)
    config = ModelConfig.from_dict(tiny_config(), source="test")
    assert place(config, EngineConfig()).device == torch.device("cpu")
    (record,) = caplog.records
    assert advice in record.message
    place(config, EngineConfig(device="cpu"))
    assert len(caplog.records) == 1
    with pytest.raises(RequestError, match=f"'cuda:1' is not there: .*{advice}"):
        place(config, EngineConfig(device="cuda:1"))
    monkeypatch.setattr(placing, "_DRIVER", tmp_path / "none")
    monkeypatch.setattr("shutil.which", lambda _: None)
    place(config, EngineConfig())
    assert len(caplog.records) == 1
