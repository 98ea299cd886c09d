"""How one generation is sampled and when it ends: the one table of defaults, and its checks."""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import RequestError

MAX_LOGPROBS = 50


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling options of one generation. These defaults hold for every interface.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_p: keep the smallest set of tokens whose probabilities sum to at least this, in (0, 1].
        top_k: keep the k likeliest tokens; 0 keeps all.
        min_p: drop tokens less likely than this fraction of the likeliest, in [0, 1].
        frequency_penalty: subtracted from a token's logit once for every time it was generated.
        presence_penalty: subtracted once from the logit of every token that was generated.
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output (CTRL paper).
        logit_bias: added to the logits of these token ids, after the grammar's mask.
        seed: of the request's own random stream; None draws one when the request enters the engine.
        max_tokens: at most this many tokens are generated.
        min_tokens: no end of sequence before this many; a grammar that is complete wins.
        stop: generation ends before the first of these strings, which is not part of the text.
        stop_regex: generation ends before the first match of one of these patterns (the dialect of `Grammar.regex`).
        stop_token_ids: generation ends at these tokens, which are not part of the text.
        always_complete: near the end of max_tokens or of the context, text that is held to a grammar takes the way to
            an ending that still fits, so that it is never cut off. Without it such text may end with "length" anywhere.
        ignore_eos: the model's end-of-sequence tokens do not end the generation.
        logprobs: None for none, 0 for each generated token's own, k for the k likeliest as well.
        prompt_logprobs: the same of the prompt's tokens.
        prompt_logprobs_from: the place in the prompt, in tokens, of the first that `prompt_logprobs` covers.
        return_text_in_logprobs: log-probabilities carry their tokens' text.

    Raises:
        RequestError: a value is out of its range; the message names it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    max_tokens: int = 128
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    always_complete: bool = True
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 0
    return_text_in_logprobs: bool = False

    def __post_init__(self) -> None:
        for value, default, name in zip(msgspec.structs.astuple(self), _DEFAULTS, self.__struct_fields__, strict=True):
            if value is not default:  # most are not given: a program makes one of these for every gen
                _check(name, value)
        if self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1)


def check_vocabulary(params: SamplingParams, vocab_size: int) -> None:
    """Raise RequestError if an option names a token that a model of `vocab_size` tokens does not have."""
    for name, token_ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        unknown = [token_id for token_id in token_ids if token_id >= vocab_size]
        if unknown:
            raise RequestError(f"{name} names token {unknown[0]}, but the model's tokens are 0 to {vocab_size - 1}")


_DEFAULTS = SamplingParams.__struct_defaults__
_NUMBERS = {
    "temperature": (0.0, 1e6),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-1e6, 1e6),
    "presence_penalty": (-1e6, 1e6),
    "repetition_penalty": (0.0, 1e6),
}
_INTEGERS = {
    "top_k": (0, 1 << 31),
    "max_tokens": (1, 1 << 31),
    "min_tokens": (0, 1 << 31),
    "seed": (0, (1 << 64) - 1),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs_from": (0, 1 << 31),
}
_ABOVE_ZERO = ("top_p", "repetition_penalty")
_MAY_BE_NONE = ("seed", "logprobs", "prompt_logprobs")


def _check(name: str, value: Any) -> None:
    """Raise RequestError if a field cannot have this value."""
    if name in _NUMBERS:
        _check_number(name, value, *_NUMBERS[name])
        if value == 0 and name in _ABOVE_ZERO:
            raise RequestError(f"{name} must be greater than 0, not {value!r}")
    elif name in _INTEGERS:
        if value is not None or name not in _MAY_BE_NONE:
            _check_integer(name, value, *_INTEGERS[name])
    elif name in ("stop", "stop_regex"):
        if not all(isinstance(stop, str) and stop for stop in value):
            raise RequestError(f"{name} must hold non-empty strings, not {value!r}")
    elif name == "stop_token_ids":
        for token_id in value:
            _check_integer(name, token_id, 0, (1 << 31) - 1)
    elif name == "logit_bias":
        _check_bias(value)
    elif not isinstance(value, bool):
        raise RequestError(f"{name} must be True or False, not {value!r}")


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")


def _check_integer(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name} must be a whole number from {low} to {high}, not {value!r}")


def _check_bias(logit_bias: dict[int, float]) -> None:
    for token_id, value in logit_bias.items():
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise RequestError(f"logit_bias must map token ids to numbers, but it has the key {token_id!r}")
        _check_number(f"logit_bias[{token_id}]", value, -1e6, 1e6)
