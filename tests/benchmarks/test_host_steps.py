"""benchmarks/host_steps.py decodes what it says, and counts every phase."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import host_steps

from palmette.bench import fake_model


@pytest.mark.parametrize("case", ["plain", "json"])
def test_every_phase_of_a_step_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """The phases' times are those of a step, and the device's is none of them."""
    monkeypatch.setattr(host_steps, "settle_heap", lambda: None)
    figures = host_steps.measure(case, fake_model.write_folder(tmp_path), batch=4, steps=3, repeats=2)
    assert set(figures.us) == {"plan", "masks", "finish", "prepare", "news"}
    assert figures.total_us == pytest.approx(sum(figures.us.values()))
    assert f"4 {case}: " in capsys.readouterr().out


def test_no_request_may_end_while_it_is_measured() -> None:
    """More steps than the requests have tokens for are refused."""
    with pytest.raises(SystemExit, match="2040 at most"):
        host_steps.measure("plain", Path(), batch=4, steps=1000, repeats=9)
