"""Sampling values from generation_config.json: what is taken, what is left, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.tiny_models import write_tiny_model

from palmette.runtime import launch
from palmette.runtime.errors import ModelLoadError
from palmette.runtime.generation_config import sampling_defaults


def folder_with(folder: Path, values: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"eos_token_id": 2, "max_new_tokens": 20, "max_length": 99}, {}),
        (
            {
                "do_sample": True,
                "temperature": 0.7,
                "top_p": 0.8,
                "top_k": 20,
                "min_p": 0.1,
                "repetition_penalty": 1.05,
            },
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05},
        ),
        ({"temperature": None, "top_k": 0}, {"top_k": 0}),
        ({"do_sample": False}, {"temperature": 0.0}),
        ({"do_sample": False, "repetition_penalty": 1.1}, {"temperature": 0.0, "repetition_penalty": 1.1}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.6}),
    ],
)
def test_sampling_values_are_taken_and_lengths_are_not(
    tmp_path: Path, values: dict[str, Any], expected: dict[str, float]
) -> None:
    """do_sample false beside no sampling value is greedy."""
    assert sampling_defaults(folder_with(tmp_path, values)) == expected


def test_no_file_sets_nothing(tmp_path: Path) -> None:
    """Most base models have none, and a .gguf file has none."""
    assert sampling_defaults(tmp_path) == {}
    assert sampling_defaults(tmp_path / "model.gguf") == {}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": "hot"}, "temperature must be a number from 0 to 1e+06, not 'hot'"),
        ({"top_p": 0}, "top_p must be greater than 0"),
        ({"top_k": 1.5}, "top_k must be a whole number"),
        ({"repetition_penalty": -1}, "repetition_penalty must be a number"),
        ({"do_sample": "no"}, "do_sample must be true or false, not 'no'"),
        ([], "must hold a JSON object, not list"),
    ],
)
def test_wrong_values_name_the_file_and_the_field(tmp_path: Path, values: Any, message: str) -> None:
    """A model that cannot be used as it is says so when it is launched."""
    with pytest.raises(
        ModelLoadError, match=re.escape(f"{tmp_path}/generation_config.json") + ".*" + re.escape(message)
    ):
        sampling_defaults(folder_with(tmp_path, values))


def test_the_engine_tells_its_model_s_defaults_unless_switched_off(tmp_path: Path) -> None:
    """generation_config="none" leaves them aside, wrong ones too."""
    folder = folder_with(write_tiny_model(tmp_path / "model"), {"temperature": 0.3, "top_k": 5})
    with launch(folder, max_total_tokens=100, processes=False) as engine:
        assert engine.model_info.sampling_defaults == {"temperature": 0.3, "top_k": 5}
        assert engine.model_info.special_tokens == ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    folder_with(folder, {"temperature": "hot"})
    with launch(folder, max_total_tokens=100, generation_config="none", processes=False) as engine:
        assert engine.model_info.sampling_defaults == {}
