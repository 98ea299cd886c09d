"""benchmarks/host_steps.py decodes what it says, and counts every phase."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from benchmarks import host_steps


@pytest.mark.parametrize("case", ["plain", "json"])
def test_every_phase_of_a_step_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """The phases' times are those of a step, and the device's is none of them."""
    monkeypatch.setattr(host_steps, "settle_heap", lambda: None)
    out = tmp_path / "figures.json"
    options = f"--batch 4 --steps 3 --repeats 2 --case {case} --json {out}"
    (figures,) = host_steps.main(options.split())
    assert json.loads(out.read_text()) == [asdict(figures)]
    assert set(figures.us) == {"plan", "masks", "finish", "prepare", "news"}
    assert all(us > 0 for us in figures.us.values())
    assert f"4 {case}: " in capsys.readouterr().out


def test_no_request_may_end_while_it_is_measured() -> None:
    """More steps than the requests have tokens for are refused."""
    with pytest.raises(SystemExit, match="2040 at most"):
        host_steps.measure("plain", Path(), batch=4, steps=1000, repeats=9)
