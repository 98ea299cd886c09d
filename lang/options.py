"""Sampling options as a program gives them, checked where they are given."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from palmette.runtime.errors import RequestError
from palmette.runtime.sampling_params import SamplingParams


class GenOptions(TypedDict, total=False):
    """Options of a generation but for max_tokens; `SamplingParams` has their meanings, ranges and defaults.

    None is the default. The last three are SGLang's names for `logprobs` and `prompt_logprobs`: ``return_logprob=True``
    is ``logprobs=0``, ``top_logprobs_num=k`` makes it k, and ``logprob_start_len=i`` asks for those of the prompt from
    token i on as well.
    """

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    stop_regex: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    always_complete: bool | None
    ignore_eos: bool | None
    logprobs: int | None
    prompt_logprobs: int | None
    prompt_logprobs_from: int | None
    return_text_in_logprobs: bool | None
    return_logprob: bool | None
    top_logprobs_num: int | None
    logprob_start_len: int | None


class SamplingOptions(GenOptions, total=False):
    """`GenOptions`, and how many tokens may come. ``max_new_tokens`` is SGLang's name for ``max_tokens``."""

    max_tokens: int | None
    max_new_tokens: int | None


OPTION_NAMES = frozenset(SamplingOptions.__annotations__)
_MOST_TOKENS = 1 << 31
_OTHER_NAMES = {"min_new_tokens": "min_tokens", "max_length": "max_tokens", "num_return_sequences": "n"}


def checked_options(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The options that are not None, in the form that `SamplingParams` takes.

    Raises:
        TypeError: an option does not exist; `where` names who was called.
        RequestError: a value is out of its range, or two names of one option were given.
    """
    for name in given:
        if name not in OPTION_NAMES:
            raise TypeError(_unknown(name, where))
    options = {name: value for name, value in given.items() if value is not None}
    _translate(options)
    for name, convert in _CONVERSIONS.items():
        if name in options:
            options[name] = convert(name, options[name])
    _check_ranges(options)
    return options


def _translate(options: dict[str, Any]) -> None:
    """Put SGLang's names and values in Palmette's."""
    if "max_new_tokens" in options:
        _rename(options, "max_new_tokens", "max_tokens")
    if options.get("top_k") == -1:
        options["top_k"] = 0
    wanted, top = options.pop("return_logprob", None), options.pop("top_logprobs_num", 0)
    start = options.pop("logprob_start_len", -1)
    if not isinstance(wanted, bool | None):
        raise RequestError(f"return_logprob must be True or False, not {wanted!r}")
    if wanted:
        _set(options, "return_logprob", "logprobs", top)
        if start != -1:
            _set(options, "logprob_start_len", "prompt_logprobs", top)
            _set(options, "logprob_start_len", "prompt_logprobs_from", start)
    elif top or start != -1:
        raise RequestError("top_logprobs_num and logprob_start_len go with return_logprob=True, which was not given")


def _rename(options: dict[str, Any], old: str, new: str) -> None:
    _set(options, old, new, options.pop(old))


def _set(options: dict[str, Any], given: str, name: str, value: Any) -> None:
    if name in options:
        raise RequestError(f"{given} and {name} are two names of one option; give one of them")
    options[name] = value


def _check_ranges(options: Mapping[str, Any]) -> None:
    """Check each value. min_tokens alone is not held against max_tokens, which may come from elsewhere."""
    room: dict[str, Any] = {} if "max_tokens" in options else {"max_tokens": _MOST_TOKENS}
    SamplingParams(**options, **room)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _strings(name: str, value: object) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence) or not all(isinstance(item, str) and item for item in strings):
        raise RequestError(f"{name} must be a non-empty string or a list of them, not {value!r}")
    return tuple(strings)


def _patterns(name: str, value: object) -> tuple[str, ...]:
    from palmette.constrained.stop_pattern import stop_patterns

    patterns = _strings(name, value)
    stop_patterns(patterns)  # raises GrammarError for what is no pattern, at the user's line
    return patterns


def _token_ids(name: str, ids: object) -> tuple[int, ...]:
    if isinstance(ids, str) or not isinstance(ids, Sequence) or not all(_is_count(item) for item in ids):
        raise RequestError(f"{name} must be a list of token ids, not {ids!r}")
    return tuple(ids)


def _biases(name: str, biases: object) -> dict[int, float]:
    items = biases.items() if isinstance(biases, Mapping) else [(None, None)]
    if all(_is_count(token_id) and isinstance(bias, int | float) for token_id, bias in items):
        return dict(items)
    raise RequestError(f"{name} must be a mapping from token ids to numbers, not {biases!r}")


_CONVERSIONS: dict[str, Callable[[str, Any], Any]] = {
    "stop": _strings,
    "stop_regex": _patterns,
    "stop_token_ids": _token_ids,
    "logit_bias": _biases,
}


def _unknown(name: str, where: str) -> str:
    known = sorted(OPTION_NAMES)
    close = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"its options are {', '.join(known)}"
    return f"{where} has no option {name!r}; {hint}"
