"""A model's own sampling values: what its authors wrote in generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ModelLoadError, RequestError
from .models.config import read_json_object
from .sampling_params import SamplingParams

_SAMPLING = ("temperature", "top_p", "top_k", "min_p")
_FIELDS = (*_SAMPLING, "repetition_penalty")


def sampling_defaults(folder: Path) -> dict[str, float]:
    """The fields of `SamplingParams` that a model folder's generation_config.json sets; none where there is no file.

    ``"do_sample": false`` beside no sampling value is temperature 0. Lengths (max_new_tokens, max_length) are left:
    they are what the authors tried the model with, often 20 tokens, and how long an answer may be is the program's to
    say, which should not be cut off elsewhere when the model changes.

    Raises:
        ModelLoadError: the file cannot be read, or one of these fields is out of its range; names both.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return {}
    values = read_json_object(path)
    found = {name: values[name] for name in _FIELDS if values.get(name) is not None}
    for name, value in found.items():
        _check(path, name, value)
    if _is_greedy(path, values) and not found.keys() & set(_SAMPLING):
        found["temperature"] = 0.0
    return found


def _check(path: Path, name: str, value: Any) -> None:
    try:
        SamplingParams(**{name: value})
    except RequestError as error:
        raise _unusable(path, str(error)) from None


def _is_greedy(path: Path, values: Mapping[str, Any]) -> bool:
    do_sample = values.get("do_sample")
    if do_sample not in (None, True, False):
        raise _unusable(path, f"do_sample must be true or false, not {do_sample!r}")
    return do_sample is False


def _unusable(path: Path, problem: str) -> ModelLoadError:
    return ModelLoadError(
        f"{path}: {problem}. Correct it, or leave the file's sampling values aside with generation_config='none'"
    )
