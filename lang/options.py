"""Sampling options as a program gives them, checked where they are given."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from palmette.runtime.errors import RequestError
from palmette.runtime.sampling_params import SamplingParams


class SamplingOptions(TypedDict, total=False):
    """Options of a generation; `SamplingParams` has their meanings, ranges and defaults. None is the default."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    logprobs: int | None


_NAMES = tuple(SamplingOptions.__annotations__)
_MOST_TOKENS = 1 << 31
_OTHER_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "top_logprobs_num": "logprobs"}


def checked_options(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The options that are not None, in the form that `SamplingParams` takes.

    Raises:
        TypeError: an option does not exist; `where` names who was called.
        RequestError: a value is out of its range.
    """
    for name in given:
        if name not in _NAMES:
            raise TypeError(_unknown(name, where))
    options = {name: value for name, value in given.items() if value is not None}
    if "stop" in options:
        options["stop"] = _stop_strings(options["stop"])
    if "stop_token_ids" in options:
        options["stop_token_ids"] = _token_ids(options["stop_token_ids"])
    if "logit_bias" in options:
        options["logit_bias"] = _biases(options["logit_bias"])
    _check_ranges(options)
    return options


def _check_ranges(options: Mapping[str, Any]) -> None:
    """Check each value. min_tokens alone is not held against max_tokens, which may come from elsewhere."""
    room: dict[str, Any] = {} if "max_tokens" in options else {"max_tokens": _MOST_TOKENS}
    SamplingParams(**options, **room)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _stop_strings(stop: object) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, Sequence) or not all(isinstance(item, str) and item for item in strings):
        raise RequestError(f"stop must be a non-empty string or a list of them, not {stop!r}")
    return tuple(strings)


def _token_ids(ids: object) -> tuple[int, ...]:
    if isinstance(ids, str) or not isinstance(ids, Sequence) or not all(_is_count(item) for item in ids):
        raise RequestError(f"stop_token_ids must be a list of token ids, not {ids!r}")
    return tuple(ids)


def _biases(biases: object) -> dict[int, float]:
    items = biases.items() if isinstance(biases, Mapping) else [(None, None)]
    if all(_is_count(token_id) and isinstance(bias, int | float) for token_id, bias in items):
        return dict(items)
    raise RequestError(f"logit_bias must be a mapping from token ids to numbers, not {biases!r}")


def _unknown(name: str, where: str) -> str:
    close = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else difflib.get_close_matches(name, _NAMES, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"its options are {', '.join(_NAMES)}"
    return f"{where} has no option {name!r}; {hint}"
