"""benchmarks/loading.py and startup.py run without a GPU, and find what they are to measure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks import loading
from benchmarks.startup import one_start, write_folder


def test_a_checkpoint_is_written_read_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside what dd reads of it; some tensors are compared with the safetensors package's."""
    options = ["--shape", "tiny", "--device", "cpu", "--cache", "warm", "--rounds", "1", "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["loading.py", *options, "--json", str(tmp_path / "out.json")])
    loading.main()
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["bytes"] > 2 * 49152 * 256
    assert [(each["cache"], len(each["dd"]), len(each["ours"])) for each in report["figures"]] == [("warm", 1, 1)]
    assert capsys.readouterr().out.startswith("written")
    assert [file.name for file in tmp_path.iterdir()] == ["out.json"]


def test_a_start_is_told_apart_into_spans(tmp_path: Path) -> None:
    """In the order in which they began, from the interpreter to the first token."""
    start = one_start("engine", write_folder(tmp_path, "tiny", None), "cpu")
    names = [name for name, *_ in start.spans]
    assert names[0] == "interpreter"
    assert {"import torch", "tokenizer", "first token (prefill)"} <= set(names)
    assert start.first_token_s == max(begin + took for name, begin, took, _ in start.spans if name.startswith("first"))
    assert "torch" in start.packages
