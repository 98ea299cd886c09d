"""Finds out what a model written for transformers asks of attention, by running it on a few tokens.

A model's code says what it needs in many ways: arguments, masks that it builds, attributes of its config. None of them
is believed. Attention is replaced by a recorder that answers with each token's own value, and three things are seen:

- the masks, as functions of two positions: causal, or causal within a window, or not for us;
- whether a token that is not a number reaches other tokens: attention did not carry it, so something else did;
- whether positions are those that were given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from palmette.runtime.errors import ModelLoadError

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether a query sees a key, of (batch, head, query position, key position), which broadcast."""

NOT_CALLED = "it has attention of its own, and does not call transformers' attention interface"

_TOKENS = 4
_POISONED = 1
_LONGEST_MASK = 1 << 20
_MEANINGLESS = frozenset(
    (
        "cache",
        "cache_position",
        "dropout",
        "output_attentions",
        "past_key_value",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "use_cache",
    )
)
"""Options of an attention call that change nothing for a flat row of tokens without transformers' own cache."""


class UnsuitableModelError(ModelLoadError):
    """A model of transformers whose attention is not plain and causal, or whose tokens meet elsewhere too."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionCall:
    """One call of attention: q [1, heads, T, head_dim], k and v [1, kv_heads, T, ...], and what came with them."""

    module: nn.Module
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    options: Mapping[str, Any]


class AttentionRecorder:
    """Attention in which each token sees itself alone. Keeps the calls, and the masks that the model asks for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.calls: list[AttentionCall] = []
        self.masks: list[MaskFunction] = []

    def attend(self, call: AttentionCall) -> Tensor:
        """Each token's own value, [1, T, heads, value_dim]."""
        self.calls.append(call)
        return call.v.repeat_interleave(call.q.shape[1] // call.v.shape[1], dim=1).transpose(1, 2).contiguous()

    def mask(self, length: int, mask_function: MaskFunction) -> Tensor:
        """A stand-in for a mask of `length` tokens, [1, 1, T, T], filled with its index in `masks`."""
        self.masks.append(mask_function)
        return torch.full((1, 1, length, length), float(len(self.masks) - 1), device=self._device)


@dataclass(frozen=True, slots=True)
class AttentionNeed:
    """What one layer asks of attention. `value_dim` may be less than `head_dim`; the rest as in `RadixAttention`."""

    module: nn.Module
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    sliding_window: int | None
    softcap: float | None


class Forward(Protocol):
    """The model's body, and the embedding that it begins with."""

    embedding: nn.Module

    def __call__(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Last hidden states [T, hidden_size] of token_ids [T] at positions [T]."""


# -- what attention is asked for --------------------------------------------------------------------------------------


def attention_needs(recorder: AttentionRecorder, *, context_length: int) -> tuple[AttentionNeed, ...]:
    """What each layer needs, from the calls of one run, in their order.

    Raises:
        UnsuitableModelError: attention was not called, or was asked for what ours does not do.
    """
    if not recorder.calls:
        raise UnsuitableModelError(NOT_CALLED)
    if len({id(call.module) for call in recorder.calls}) < len(recorder.calls):
        raise UnsuitableModelError("it runs a layer several times, whose keys and values would be kept in one place")
    length = min(context_length, _LONGEST_MASK)
    windows = _Windows(recorder.masks, length)
    needs = tuple(_need(call, windows) for call in recorder.calls)
    shapes = {(need.num_kv_heads, need.head_dim) for need in needs}
    if len(shapes) > 1:
        listed = ", ".join(f"{heads} of {dim}" for heads, dim in sorted(shapes))
        raise UnsuitableModelError(f"its layers differ in their key heads ({listed}), which one KV cache cannot hold")
    return needs


def _need(call: AttentionCall, windows: _Windows) -> AttentionNeed:
    _refuse_options(call.options)
    (_, heads, _, head_dim), kv_heads, value_dim = call.q.shape, call.k.shape[1], call.v.shape[-1]
    if len(call.q) != 1 or heads % kv_heads or value_dim > head_dim or call.k.shape[-1] != head_dim:
        shapes = ", ".join(str(tuple(x.shape)) for x in (call.q, call.k, call.v))
        raise UnsuitableModelError(f"its attention has queries, keys and values of shapes {shapes}")
    scale = call.options.get("scaling")
    softcap = call.options.get("softcap")
    return AttentionNeed(
        call.module,
        heads,
        kv_heads,
        head_dim,
        value_dim,
        head_dim**-0.5 if scale is None else float(scale),
        windows.of(call),
        None if softcap is None else float(softcap),
    )


def _refuse_options(options: Mapping[str, Any]) -> None:
    known = _MEANINGLESS | {"scaling", "softcap", "sliding_window", "is_causal"}
    for name, value in options.items():
        if name not in known and value is not None and value is not False:
            raise UnsuitableModelError(f"its attention is given {name}, which Palmette's does not know")


class _Windows:
    """The sliding window of a call, measured on the mask that the model asked for."""

    def __init__(self, masks: Sequence[MaskFunction], length: int) -> None:
        self._masks = masks
        self._length = length
        self._measured: dict[int, int | None] = {}

    def of(self, call: AttentionCall) -> int | None:
        """How many tokens a token sees, itself among them; None is all before it."""
        if call.mask is None:
            return self._without_mask(call)
        indices = torch.unique(call.mask).tolist()
        if len(indices) != 1 or indices[0] not in range(len(self._masks)):
            raise UnsuitableModelError("it changes its attention mask (position biases, ALiBi or chosen blocks)")
        index = int(indices[0])
        if index not in self._measured:
            self._measured[index] = visible_window(self._masks[index], self._length, call.q.device)
        return self._measured[index]

    def _without_mask(self, call: AttentionCall) -> int | None:
        causal = call.options.get("is_causal")
        if not (getattr(call.module, "is_causal", False) if causal is None else causal):
            raise UnsuitableModelError("its attention is not causal")
        window: int | None = call.options.get("sliding_window")
        return window if window is not None and window < self._length else None


def visible_window(mask: MaskFunction, length: int, device: torch.device) -> int | None:
    """How many tokens a token sees under a mask, itself among them; None is all before it.

    Args:
        length: of the longest context, at least 1.

    Raises:
        UnsuitableModelError: the mask is neither causal nor causal within a window.
    """
    keys = torch.arange(length, device=device)
    window = int(_sees(mask, keys[-1:], keys).sum())
    asked = {0, 1, window - 1, window, window + 1, length // 3, length // 2, length - 1}
    queries = torch.tensor(sorted(asked & set(range(length))), device=device)
    expected = (keys <= queries[:, None]) & (keys > queries[:, None] - window)
    if not window or not torch.equal(_sees(mask, queries, keys), expected):
        raise UnsuitableModelError("its attention mask is neither causal nor a sliding window")
    return None if window == length else window


def _sees(mask: MaskFunction, queries: Tensor, keys: Tensor) -> Tensor:
    """[Q, K], whether each query sees each key."""
    zero = torch.zeros((), dtype=torch.int64, device=keys.device)
    return mask(zero, zero, queries[:, None], keys[None, :]).expand(len(queries), len(keys))


# -- what happens outside attention -----------------------------------------------------------------------------------


def run_poisoned(forward: Forward, device: torch.device) -> None:
    """Run four tokens, of which one is embedded as not a number.

    Raises:
        UnsuitableModelError: it reached another token although attention did not take it there, or was no number
            without that.
    """
    token_ids, positions = torch.arange(1, _TOKENS + 1, device=device), torch.arange(_TOKENS, device=device)
    hook = forward.embedding.register_forward_hook(_poison)
    try:
        states = forward(token_ids, positions)
    finally:
        hook.remove()
    reached = states.isnan().any(dim=-1)
    if reached.tolist() == [token == _POISONED for token in range(_TOKENS)]:
        return
    if forward(token_ids, positions).isnan().any():
        raise UnsuitableModelError(f"its hidden states are NaN in {states.dtype}: its weights are, or overflow it")
    raise UnsuitableModelError(
        "its tokens depend on one another outside transformers' attention interface: it has recurrent or "
        "convolution layers, or attention of its own"
    )


def _poison(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    poisoned = output.clone()
    poisoned[:, _POISONED] = float("nan")
    return poisoned


def check_positions(forward: Forward, recorder: AttentionRecorder, device: torch.device) -> None:
    """Look whether equal tokens at equal positions are equal everywhere, wherever they stand in the row.

    Raises:
        UnsuitableModelError: the model counts positions itself.
    """
    recorder.calls.clear()
    states = forward(torch.ones(_TOKENS, dtype=torch.int64, device=device), torch.tensor([3, 3, 5, 5], device=device))
    seen = [states] + [x[0].transpose(0, 1) for call in recorder.calls for x in (call.q, call.k, call.v)]
    if not all(alike(x[0], x[1]) and alike(x[2], x[3]) for x in seen):
        raise UnsuitableModelError("it counts positions itself instead of taking those it is given")
    if any(call.mask is not None for call in recorder.calls):
        raise UnsuitableModelError("it makes an attention mask of its own")


def alike(a: Tensor, b: Tensor) -> bool:
    """Equal but for rounding; another position turns parts of queries and keys by a radian."""
    tolerance = 1e-3 if a.dtype == torch.float32 else 0.1
    return bool((a - b).abs().max() <= tolerance * a.abs().max())
