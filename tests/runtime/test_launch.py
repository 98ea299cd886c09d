"""`launch`: settings and models that do not fit get an error that says what would."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from palmette.constrained.errors import PalmetteError
from palmette.runtime import EngineConfig, launch
from palmette.runtime.config import EngineSettings


def test_launch_takes_every_setting() -> None:
    """The typed keyword arguments of `launch` are the fields of `EngineConfig`."""
    fields = {field.name for field in dataclasses.fields(EngineConfig)}
    assert fields == {"model"} | EngineSettings.__annotations__.keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "random"}, "policy must be one of fcfs, lpm, not 'random'"),
        ({"chunk_size": 0}, "chunk_size must be a whole number of at least 1, not 0"),
        ({"page_size": True}, "page_size must be a whole number"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"attention_backend": "fast"}, "attention_backend must be one of"),
        ({"context_length": 10**6}, "context_length=1000000 is more than"),
    ],
)
def test_a_setting_out_of_range_is_named(tiny_model_folder: Path, settings: dict[str, Any], message: str) -> None:
    """The error names the setting, its value and what is allowed."""
    with pytest.raises(PalmetteError, match=re.escape(message)):
        launch(str(tiny_model_folder), max_total_tokens=1000, **settings)


def test_an_unknown_setting_is_a_type_error(tiny_model_folder: Path) -> None:
    """A misspelt setting fails at the call."""
    with pytest.raises(TypeError, match="max_total_token"):
        launch(str(tiny_model_folder), max_total_token=5)  # type: ignore[call-arg]


def test_a_missing_model_says_where_it_looked(tmp_path: Path) -> None:
    """A folder that is not there, and one that holds no model."""
    with pytest.raises(PalmetteError, match="no model folder at"):
        launch(str(tmp_path / "nothing"))
    with pytest.raises(PalmetteError, match=r"config\.json|tokenizer\.json"):
        launch(str(tmp_path))
