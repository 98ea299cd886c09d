"""benchmarks/serving.py and what belongs to it: the same requests as elsewhere, run, counted and checked."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import gpu_profile, serving, serving_json
from benchmarks.gpu_trace import Work, device_use, read_trace
from benchmarks.serving_device import Device
from benchmarks.serving_host import simulate
from benchmarks.serving_run import Run
from benchmarks.serving_workloads import WORKLOADS

from palmette.runtime.config import EngineConfig
from palmette.runtime.tokenizer import Tokenizer

DIGESTS = {
    "unique": "d9a9b781f010cba0",
    "fork": "43b7794223e05e1a",
    "fewshot": "088f0e3c6ce50362",
    "agents": "256a9c42dae16518",
    "single1": "c2e6f09fc5d9806d",
    "single8": "ce9fbdcea7b5c506",
    "single64": "9a0d2db4ffb75859",
    "json": "e67e02d8f98c4298",
}
"""Of the prompts that the other engines were timed on."""

PLAIN = [name for name in WORKLOADS if name != "json"]
TINY = ["--shape", "tiny", "--scale", "tiny", "--repeats", "1", "--device", "cpu"]
SETTINGS = EngineConfig(chunk_size=256, max_running_requests=64, max_total_tokens=16384, seed=0)


@pytest.mark.parametrize("name", WORKLOADS)
def test_prompts_are_those_of_the_other_engines(name: str) -> None:
    """Token for token, so that times can be compared."""
    digest = hashlib.sha256()
    for asks in WORKLOADS[name]("full").rounds:
        for ask in asks:
            digest.update(ask.prompt.tobytes())
    assert digest.hexdigest()[:16] == DIGESTS[name]


def test_every_workload_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a tiny model: one line each, every answer of its exact length, and a report with all that matters."""
    report = serving.main([*TINY, "--workload", *PLAIN, "--json", str(tmp_path / "out.json")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["workload", *PLAIN, "engine:"]
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(json.dumps(report))
    assert report["machine"]["versions"]["torch"]
    assert report["settings"]["mem_fraction"] == 0.85
    assert report["engine"]["start_s"] > report["engine"]["first_token_s"] > 0
    for figures in report["engine"]["workloads"]:
        workload = WORKLOADS[figures["workload"]]("tiny")
        assert figures["tokens"] == workload.new_tokens
        assert figures["alike"] == figures["requests"] == workload.requests
        assert 0 < figures["busy"] <= 1
        assert len(figures["all_seconds"]) == 1


@pytest.mark.default_model
def test_every_json_answer_is_valid(default_model_folder: Path, tmp_path: Path) -> None:
    """Random weights under the schema, with the tokenizer as it was exported for machines without a network."""
    folder = serving_json.export_tokenizer(tmp_path / "tokenizer")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 8 << 20
    assert Tokenizer.load(folder).token_bytes == Tokenizer.load(default_model_folder).token_bytes
    report = serving.main([*TINY, "--workload", "json", "--tokenizer", str(folder)])
    (figures,) = report["json engine"]["workloads"]
    assert figures["valid"] == figures["requests"] == 2


@pytest.mark.default_model
def test_answers_are_validated(default_model_folder: Path) -> None:
    """Only what is JSON, whole and of the schema counts."""
    tokenizer = Tokenizer.load(default_model_folder)
    wand = {"wood": "oak", "core": "dragon", "length": 9}
    person = {"name": "N", "house": "Slytherin", "age": 5, "alive": True, "wand": wand, "friends": ["a", "b"]}
    texts = [json.dumps(person), json.dumps(person | {"age": 0}), json.dumps(person)[:-1], ""]
    outputs = [np.array(tokenizer.encode_text(text), dtype=np.int32) for text in texts]
    assert serving_json.valid_answers(outputs, tokenizer.token_bytes) == 1


def simulated(name: str) -> tuple[Run, Device]:
    device = Device()
    return simulate(WORKLOADS[name]("tiny"), SETTINGS, device), device


@pytest.mark.parametrize("name", ["fork", "fewshot"])
def test_shared_prefixes_are_computed_once(name: str) -> None:
    """Siblings wait for the pages of the first of them: nobody computes again what is in the cache."""
    run, _ = simulated(name)
    workload = WORKLOADS[name]("tiny")
    (asks,) = workload.rounds
    heads = {ask.prompt[:64].tobytes() for ask in asks}
    own = sum(len(ask.prompt) - 64 for ask in asks)
    assert run.computed == 64 * len(heads) + own + workload.new_tokens - workload.requests


def test_the_next_turn_finds_the_last_one_in_the_cache() -> None:
    """But for the tokens after its last whole page and the token that was sampled last."""
    run, _ = simulated("agents")
    workload = WORKLOADS["agents"]("tiny")
    asks = [ask for asks in workload.rounds for ask in asks]
    system, sessions = 48, 4
    fresh = sum(len(ask.prompt) for ask in asks) - system * (sessions - 1) + workload.new_tokens
    assert run.computed <= fresh + 16 * len(asks)


def test_the_device_takes_the_time_of_its_steps() -> None:
    """The clock shows no less than what the device computes, and the host's own time besides."""
    run, device = simulated("unique")
    assert run.steps == len(device.steps)
    assert run.seconds >= sum(seconds for _, _, seconds in device.steps)
    assert sum(tokens for _, tokens, _ in device.steps) == run.computed


def test_a_trace_gives_busy_time_gaps_and_kernels(tmp_path: Path) -> None:
    """Overlapping work counts once; what runs on the host is no work of the device."""
    events = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 10.0, "dur": 10.0},
        {"ph": "X", "cat": "gpu_memcpy", "name": "copy", "ts": 15.0, "dur": 10.0},
        {"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": 0.0, "dur": 99.0},
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 40.0, "dur": 10.0},
    ]
    path = tmp_path / "trace.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    use = device_use(read_trace(path))
    assert (use.span_us, use.busy_us) == (40.0, 25.0)
    assert use.idle == pytest.approx(15 / 40)
    assert [(gap.us, gap.after, gap.before) for gap in use.gaps] == [(15.0, "copy", "gemm")]
    assert use.kernels == (("gemm", 2, 20.0), ("copy", 1, 10.0))
    assert device_use([]).idle == 0
    assert device_use([Work("a", 0, 1)]).gaps == ()


def test_the_host_is_profiled_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no GPU to trace, the host's phases are still told apart."""
    options = ["--case", "2", "--shape", "tiny", "--steps", "3", "--trace", str(tmp_path), "--device", "cpu"]
    (found,) = gpu_profile.main(options)
    assert {"plan", "launch", "sample", "wait", "finish"} <= found.host_ms.keys()
    assert sum(found.host_ms.values()) <= found.step_ms
    assert capsys.readouterr().out.startswith("case 2: ")
