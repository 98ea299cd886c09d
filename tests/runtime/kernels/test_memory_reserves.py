"""What is taken after the KV pool was made is what was kept for it at most, each part by the code that takes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.memory_peak import MemoryPeak
from tests.runtime.fake_flashinfer import fake_flashinfer
from tests.sampling import masked, plan_of, random_logits, setup
from tests.step_plans import PlannedRow, StepPlanner
from tests.step_tape import TapeRecorder
from tests.tiny_models import write_tiny_model
from torch import Tensor
from triton.runtime.jit import KernelInterface

from palmette.runtime import kernels, memory_reserves
from palmette.runtime.attention import workspaces
from palmette.runtime.attention.flashinfer import FlashInferAttention
from palmette.runtime.attention.paged import spare_plan
from palmette.runtime.config import EngineConfig, Sizes
from palmette.runtime.cuda_graph import MOST_MIXED_TOKENS, decode_sizes, kept_bytes, padded_sizes
from palmette.runtime.kernels import decode_attention, sampling, sampling_rank
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.placement import Placement
from palmette.runtime.layers.rotary import Angles
from palmette.runtime.mask_table import MaskTable
from palmette.runtime.memory_reserves import reserves_of
from palmette.runtime.model_runner import ModelRunner
from palmette.runtime.models import ModelConfig
from palmette.runtime.penalties import PenaltyCounts
from palmette.runtime.recorded_attention import Pieces, padded_plan
from palmette.runtime.sampler import Sampler
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.token_chooser import LOGITS_AT_ONCE, work_bytes

_MIB = 1 << 20
_ROWS, _V = 16, 20_000

_LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}

_EVERYTHING = {
    "seed": 1,
    "temperature": 0.7,
    "top_k": 50,
    "top_p": 0.9,
    "min_p": 0.01,
    "min_tokens": 4,
    "repetition_penalty": 1.5,
    "frequency_penalty": 0.5,
    "logit_bias": {3: 1.0},
    "logprobs": 20,
}


def test_reserves_of_an_8b_model_with_512_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GiB and a half on an H200, of which each part is what the settings make it."""
    monkeypatch.setattr(kernels, "serve", lambda device: True)
    monkeypatch.setattr(workspaces, "missing", lambda device, dtype, head_dim: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    config = ModelConfig.from_dict(_LLAMA_8B, source="test")
    placement = Placement(dtype=torch.bfloat16, device=torch.device("cuda:0"))
    layers = [RadixAttention(0, num_heads=32, num_kv_heads=8, head_dim=128)] * 32
    model = SimpleNamespace(config=config, placement=placement, attention_layers=layers)
    sizes = Sizes(page_size=16, max_running_requests=512, chunk_size=8192, mem_fraction=0.85)
    found = reserves_of(model, EngineConfig(), sizes, recorded=True)
    assert {reserve.what: round(reserve.size_bytes / _MIB) for reserve in found} == {
        "choosing tokens": 792,  # logits 125, shaped 250, at work 384, top-k and top-p 32
        "attention's workspaces": 249,  # FlashInfer's: 66 for launched steps, 161 for recorded ones, plans 22
        "matrix products' workspaces": 80,
        "recorded steps": 172,  # 129 to work in, 43 for what attention gives to 31 mixed sizes
        "the driver's kernels and graphs": 1024,
    }
    launched = reserves_of(model, EngineConfig(), sizes, recorded=False)
    assert {reserve.what: round(reserve.size_bytes / _MIB) for reserve in launched}["recorded steps"] == 0
    assert work_bytes(1 << 40) == work_bytes(LOGITS_AT_ONCE) == 384 * _MIB
    assert memory_reserves.page_table_bytes(sizes, recorded=True) == 4 * (8192 + 512)


def test_a_small_gpu_has_room_for_a_model_of_1b(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is set, 2.2 GiB are kept or taken by tables, beside weights of 2.4 and a step of 0.1 of 6.8."""
    monkeypatch.setattr(kernels, "serve", lambda device: True)
    monkeypatch.setattr(workspaces, "missing", lambda device, dtype, head_dim: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=46))
    shape = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64}
    config = ModelConfig.from_dict(_LLAMA_8B | shape, source="test")
    placement = Placement(dtype=torch.bfloat16, device=torch.device("cuda:0"))
    layers = [RadixAttention(0, num_heads=32, num_kv_heads=8, head_dim=64)]
    model = SimpleNamespace(config=config, placement=placement, attention_layers=layers)

    def beside_the_pool(sizes: Sizes) -> float:
        reserves = sum(reserve.size_bytes for reserve in reserves_of(model, EngineConfig(), sizes, recorded=True))
        tables = PenaltyCounts.bytes_of(config.vocab_size, sizes.max_running_requests)
        tables += MaskTable.bytes_of(EngineConfig().mask_rows, config.vocab_size)
        longest = config.context_length // sizes.page_size
        return (reserves + tables + longest * memory_reserves.page_table_bytes(sizes, recorded=True)) / 2**30

    assert beside_the_pool(EngineConfig().sizes_for("cuda", 8 << 30)) < 2.2
    assert beside_the_pool(EngineConfig().sizes_for("cuda", 80 << 30)) > 3.5


@pytest.mark.parametrize("options", [_EVERYTHING, {"temperature": 0.0, "repetition_penalty": 1.5}, {"seed": 1}])
def test_sampling_takes_what_was_counted_and_keeps_nothing(options: dict[str, object]) -> None:
    """Whatever the rows ask for, all of them at once; the second time no more is taken than the first."""
    sampler = Sampler(_V, _ROWS, 8, "cpu")
    sampler.load([setup(row, SamplingParams(**options), prompt=[5], ends=[1]) for row in range(_ROWS)])  # type: ignore[arg-type]  # a mapping of all kinds
    logits = random_logits(0, _ROWS, _V).bfloat16()
    for turn in range(2):
        with torch.inference_mode(), MemoryPeak() as peak:
            sampled = sampler.sample(logits, plan_of(range(_ROWS), positions=[turn] * _ROWS), masked(*[3] * _ROWS))
        assert peak.peak_bytes <= work_bytes(_ROWS * _V)
        assert peak.now_bytes == sampled.words.nbytes


@pytest.mark.parametrize("at_once", [1, 3, 16])
def test_work_on_logits_is_bounded(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows there are, few of them are at work at a time; the tokens stay the same."""
    monkeypatch.setattr("palmette.runtime.token_chooser._DRAWN_AT_ONCE", at_once * _V)
    monkeypatch.setattr("palmette.runtime.token_chooser.LOGITS_AT_ONCE", at_once * _V)
    sampler, alone = Sampler(_V, _ROWS, 8, "cpu"), Sampler(_V, _ROWS, 8, "cpu")
    setups = [setup(row, SamplingParams(**_EVERYTHING), prompt=[row]) for row in range(_ROWS)]  # type: ignore[arg-type]  # as above
    sampler.load(setups)
    alone.load(setups)
    logits = random_logits(0, _ROWS, _V)
    with torch.inference_mode(), MemoryPeak() as peak:
        sampled = sampler.sample(logits, plan_of(range(_ROWS)))
    assert peak.peak_bytes <= work_bytes(4 * at_once * _V)
    for row in (0, 7, 15):
        assert sampled.token_ids[row] == alone.sample(logits[row : row + 1], plan_of([row])).token_ids[0]


def test_scoring_takes_no_more_than_sampling_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The likeliest fifty beside every token of a prompt; draws by torch, which may take more, do not matter."""
    monkeypatch.setattr("palmette.runtime.token_chooser._DRAWN_AT_ONCE", 0)
    runner = ModelRunner.load(write_tiny_model(tmp_path), EngineConfig(device="cpu", max_total_tokens=256))
    planner = StepPlanner(runner.num_pages, runner.page_size)
    request = planner.request(range(100), most_tokens=100)
    score = [(place, place + 1) for place in range(99)]
    plan = planner.plan([PlannedRow(request, request.prompt, sample=False, score=score, top=50)])
    with torch.inference_mode():
        hidden = runner._forward(plan)
        with MemoryPeak() as peak:
            scores = runner._score(hidden, plan)
    logits = 100 * runner.config.vocab_size * 4
    kept = scores.logprobs.nbytes + scores.top_ids.nbytes + scores.top_logprobs.nbytes
    assert peak.peak_bytes <= logits + kept + work_bytes(100 * runner.config.vocab_size)
    assert peak.now_bytes == kept


def test_penalties_of_all_slots_have_their_memory_from_the_start() -> None:
    """As on a GPU: every slot loaded, and loaded anew, takes nothing more; the size is what was told."""
    with MemoryPeak() as made:
        counts = PenaltyCounts(_V, torch.device("cpu"), rows=_ROWS)
    assert made.now_bytes == PenaltyCounts.bytes_of(_V, _ROWS)
    params = SamplingParams(seed=1, frequency_penalty=0.5)
    with MemoryPeak() as peak:
        for turn in range(2):
            counts.load([setup(slot, params, prompt=[turn], output=[slot]) for slot in range(_ROWS)])
            counts.check_invariants()
    assert peak.now_bytes == 0
    assert peak.peak_bytes < 20 * _V


def test_flashinfer_takes_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launched steps of two kinds of layers, and recorded ones of every size, the largest first."""
    config = ModelConfig.from_dict(_LLAMA_8B | {"num_hidden_layers": 2}, source="test")
    storage = KVStorage(config, Placement(dtype=torch.bfloat16), num_pages=2, page_size=16)
    layers = [
        RadixAttention(i, num_heads=32, num_kv_heads=8, head_dim=128, sliding_window=(None, 64)[i]) for i in range(2)
    ]
    sizes = decode_sizes(16)[::-1]
    monkeypatch.setattr(kernels, "serve", lambda device: True)
    monkeypatch.setattr(workspaces, "missing", lambda device, dtype, head_dim: None)
    monkeypatch.setattr("palmette.runtime.attention.paged.rotate_and_write", lambda qkv, *_: qkv[:, :32].contiguous())
    monkeypatch.setattr("palmette.runtime.attention.flashinfer_planner.Launch.run", lambda *_: None)
    with fake_flashinfer(), MemoryPeak() as peak:
        attention = FlashInferAttention(storage)
        attention._graph_buffer.of(1 << 16)  # page tables are counted apart
        tables = peak.now_bytes
        attention.warm_up(layers)
        graphs = [attention.decode_graph(size, 64) for size in sizes]
        for size, graph in zip(sizes, graphs, strict=True):
            assert graph is not None
            graph.plan(padded_plan(spare_plan(storage, 1, decode=True), size, storage))
            for layer in layers:
                graph.run(torch.zeros(size, 48, 128, dtype=torch.bfloat16), layer)
        kept = peak.now_bytes - tables
        counted = workspaces.workspace_bytes(None, layers, storage.placement, 16, sizes)
    assert 0.8 * counted < kept <= counted


def test_own_kernels_of_attention_take_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of every row and of as many more parts as contexts may be split into."""
    monkeypatch.setattr(kernels, "serve", lambda device: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    for kernel in ("_decode_items", "_merge_items"):
        monkeypatch.setattr(decode_attention, kernel, _Launches())
    layer = RadixAttention(0, num_heads=32, num_kv_heads=8, head_dim=128)
    rows, more = 40, decode_attention.most_splits(8, 132)
    item_rows, split_indptr = (torch.zeros(n, dtype=torch.int32) for n in (rows + more, rows + 1))
    where = decode_attention.DecodeRows(*(torch.zeros(1, dtype=torch.int32),) * 3, item_rows, split_indptr)
    q, cache = torch.zeros(rows, 32, 128), torch.zeros(16, 8, 128)
    with MemoryPeak() as peak:
        decode_attention.decode_attention(q, cache, cache, where, q, page_size=16, scale=1.0)
    assert peak.peak_bytes == workspaces.workspace_bytes("triton", [layer], Placement(), rows, [])


def test_choosing_by_kernels_takes_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the logits: all rows shaped, those with top-k and top-p ranked, and the work on some of them."""
    for module in (sampling, sampling_rank):
        for name, value in vars(module).copy().items():
            if isinstance(value, KernelInterface):
                monkeypatch.setattr(module, name, _Launches())
    monkeypatch.setattr("palmette.runtime.kernel_chooser.LOGITS_AT_ONCE", 4 * _V)
    monkeypatch.setattr("palmette.runtime.token_chooser.LOGITS_AT_ONCE", 4 * _V)
    monkeypatch.setattr("palmette.runtime.token_chooser._DRAWN_AT_ONCE", 0)
    sampler = Sampler(_V, _ROWS, 8, "cpu", kernels=True)
    sampler.load([setup(row, SamplingParams(**_EVERYTHING), prompt=[5], ends=[1]) for row in range(_ROWS)])  # type: ignore[arg-type]  # as above
    logits = random_logits(0, _ROWS, _V).bfloat16()
    with torch.inference_mode(), MemoryPeak() as peak:
        rows = np.arange(_ROWS, dtype=np.int32)
        sampled = sampler._chooser.choose(logits, rows, np.zeros_like(rows), np.full_like(rows, 3))
    config = SimpleNamespace(vocab_size=_V, logit_softcap=None, logit_divisor=1.0)
    model = SimpleNamespace(config=config, placement=Placement(dtype=torch.bfloat16))
    sizes = Sizes(page_size=16, max_running_requests=_ROWS, chunk_size=_ROWS, mem_fraction=0.85)
    counted = memory_reserves._choice_bytes(model, sizes)
    assert 0.6 * counted < logits.nbytes + peak.peak_bytes <= counted
    assert peak.now_bytes == sampled.words.nbytes


def test_what_recorded_steps_keep_is_counted() -> None:
    """A mixed step keeps attention's output once, however many layers it has, wherever the pieces' memory is."""
    config = ModelConfig.from_dict(_LLAMA_8B, source="test")
    kept = 0
    for size in padded_sizes(MOST_MIXED_TOKENS)[:4]:
        recorder = TapeRecorder()
        pieces = Pieces(_Copies(), recorder)
        with recorder.aside(), MemoryPeak() as peak:
            recorder.begin()
            for layer_id in range(3):
                layer = RadixAttention(layer_id, num_heads=32, num_kv_heads=8, head_dim=128)
                pieces.run(torch.zeros(size, 48, 128, dtype=torch.bfloat16), layer)
            pieces.end()
        kept += sum(out.nbytes for out in pieces._out.values())
        assert peak.peak_bytes > 0
    assert kept == sum(padded_sizes(MOST_MIXED_TOKENS)[:4]) * 32 * 128 * 2
    assert kept_bytes(config, Placement(dtype=torch.bfloat16)) == sum(padded_sizes(MOST_MIXED_TOKENS)) * 32 * 128 * 2


class _Launches:
    """A kernel that computes nothing."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *_, **__: None


class _Copies:
    """Attention that gives queries for answers."""

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        return qkv[:, : layer.num_heads].clone()
