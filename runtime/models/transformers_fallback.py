"""Causal language models without code of ours, run through transformers' own modelling code.

transformers calls our attention through its attention interface: one flat row of tokens, their positions given, no mask
and none of its caches. All else is the model's own. A model is looked at on a few tokens before it is used, so that one
which would give other answers is refused; see `transformers_probe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from palmette.runtime.attention.base import StepAttention
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.placement import Placement, Slots, TensorSlot

from .config import ModelConfig, token_ids
from .transformers_probe import (
    AttentionCall,
    AttentionNeed,
    AttentionRecorder,
    MaskFunction,
    UnsuitableModelError,
    alike,
    attention_needs,
    check_positions,
    run_poisoned,
)

PROBE = "palmette_probe"
"""Our attention's name in transformers while a model is looked at: masks are asked for under it."""
_ATTENTION = "palmette"
"""The same attention while a model runs. It has no mask function, and so no mask is made for it."""
_SEAT = "_palmette_seat"
"""Attribute of an attention module: who answers its calls."""
_recorder: ContextVar[AttentionRecorder] = ContextVar("palmette_recorder")
"""Of the model that is being looked at: masks are made by functions that know no model."""


@dataclass(slots=True)
class _Step:
    """The attention backend of the step that is being computed."""

    attention: StepAttention | None = None


class _Seat:
    """Stands at one attention module of the model, and runs its `layer` on the step's pages."""

    def __init__(self, layer_id: int, need: AttentionNeed, step: _Step, dtype: torch.dtype) -> None:
        self.layer = RadixAttention(
            layer_id,
            num_heads=need.num_heads,
            num_kv_heads=need.num_kv_heads,
            head_dim=need.head_dim,
            sliding_window=need.sliding_window,
            scale=need.scale,
            softcap=need.softcap,
        )
        self._padding = need.head_dim - need.value_dim
        self._step = step
        self._dtype = dtype

    def attend(self, call: AttentionCall) -> Tensor:
        """[1, T, heads, value_dim]."""
        assert self._step.attention is not None
        q, k, v = (x[0].transpose(0, 1).to(self._dtype) for x in (call.q, call.k, call.v))
        if self._padding:
            v = nn.functional.pad(v, (0, self._padding))
        out = self._step.attention.run(torch.cat((q, k, v), dim=1), self.layer)
        return out[None, ..., : out.shape[-1] - self._padding].to(call.v.dtype)


class TransformersModel:
    """See `CausalLM`. `body` gives last hidden states; `head`, the whole model around a stand-in for it, logits.

    Attributes:
        attention_layers: which stand in the seats of the model's own.
    """

    launches_only = False  # nobody knows what its code does between its operations

    def __init__(
        self,
        config: ModelConfig,
        placement: Placement,
        attention_layers: Sequence[RadixAttention],
        step: _Step,
        body: _Body,
        head: nn.Module,
    ) -> None:
        self.config = config
        self.placement = placement
        self.attention_layers = attention_layers
        self._step = step
        self._body = body
        self._head = head

    def hidden(
        self, token_ids: Tensor, positions: Tensor, attention: StepAttention, wanted: Tensor | None = None
    ) -> Tensor:
        self._step.attention = attention
        states = self._body(token_ids, positions)
        return states if wanted is None else states.index_select(0, wanted)

    def logits(self, hidden: Tensor) -> Tensor:
        return _logits(self._head, hidden)

    def slots(self) -> Slots:
        return parameter_slots(self._body.module) | parameter_slots(self._head)

    def ignores(self, name: str) -> bool:
        return False


class _Body:
    """The model up to its last hidden states. See `transformers_probe.Forward`."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.embedding: nn.Module = module.get_input_embeddings()  # type: ignore[operator]  # a method of transformers'

    def __call__(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        return self.output(token_ids, positions).last_hidden_state[0]  # type: ignore[no-any-return]  # as above

    def output(self, token_ids: Tensor, positions: Tensor) -> Any:
        """What the module returns for one row of tokens."""
        return self.module(
            input_ids=token_ids[None].long(), position_ids=positions[None].long(), use_cache=False, return_dict=True
        )


class _GivenStates(nn.Module):
    """Takes the body's place before the head: what it is given as embeddings is what comes out. Else it is the body."""

    def __init__(self, body: nn.Module, output: type[Any]) -> None:
        super().__init__()
        self._body = [body]  # in a list, to be no submodule
        self._output = output

    def forward(self, *args: object, inputs_embeds: Tensor, **options: object) -> Any:
        return self._output(last_hidden_state=inputs_embeds)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_body"][0], name)


def _logits(head: nn.Module, hidden: Tensor) -> Tensor:
    return head(inputs_embeds=hidden[None], use_cache=False, return_dict=True).logits[0]  # type: ignore[no-any-return]


def parameter_slots(module: nn.Module) -> Slots:
    """Where each parameter is filled, by its name in the module."""
    return {name: TensorSlot(tuple(each.shape), each.detach()) for name, each in module.named_parameters()}


class ModelBuilder:
    """Looks at a loaded model, and puts our attention into it.

    Raises:
        UnsuitableModelError: it has no body and head that can be told apart, or asks for what Palmette does not do.
    """

    def __init__(self, module: nn.Module, placement: Placement) -> None:
        self._module = module
        self._placement = placement
        self._recorder = AttentionRecorder(placement.device)
        self._body_name, body = _find_body(module)
        self._body = _Body(body)

    def build(self, architecture: str, context_length: int, dtype: str) -> TransformersModel:
        """The model on our attention. `architecture`, `context_length` and `dtype` are what its config says."""
        parts = list(self._body.module.modules())
        for part in parts:
            setattr(part, _SEAT, self._recorder)
        needs = self._look(context_length)
        hidden_size, vocab_size = self._split_head()
        for part in parts:
            delattr(part, _SEAT)
        step = _Step()
        seats = [_Seat(layer_id, need, step, self._placement.dtype) for layer_id, need in enumerate(needs)]
        for need, seat in zip(needs, seats, strict=True):
            setattr(need.module, _SEAT, seat)
        config = ModelConfig(
            architecture=architecture,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            num_layers=len(needs),
            num_heads=needs[0].num_heads,
            num_kv_heads=needs[0].num_kv_heads,
            head_dim=needs[0].head_dim,
            context_length=context_length,
            eos_token_ids=self._eos_token_ids(),
            dtype=dtype,
            intermediate_size=0,  # this and what follows is read by our own models only
            rms_norm_eps=0.0,
            rope_theta=0.0,
        )
        layers = [seat.layer for seat in seats]
        return TransformersModel(config, self._placement, layers, step, self._body, self._module)

    def _look(self, context_length: int) -> tuple[AttentionNeed, ...]:
        """What each layer needs. Masks are no longer made afterwards."""
        device = self._placement.device
        token = _recorder.set(self._recorder)
        try:
            run_poisoned(self._body, device)
        finally:
            _recorder.reset(token)
        needs = attention_needs(self._recorder, context_length=context_length)
        self._module.set_attn_implementation(_ATTENTION)  # type: ignore[operator]  # a method of transformers'
        check_positions(self._body, self._recorder, device)
        return needs

    def _split_head(self) -> tuple[int, int]:
        """Put a stand-in for the body into the module, and see that logits stay the same.

        Returns:
            hidden_size and the number of logits.
        """
        positions = torch.arange(3, device=self._placement.device)
        token_ids = positions + 1
        whole = self._module(
            input_ids=token_ids[None], position_ids=positions[None], use_cache=False, return_dict=True
        ).logits[0]
        output = self._body.output(token_ids, positions)
        states: Tensor = output.last_hidden_state[0]
        self._module.set_submodule(self._body_name, _GivenStates(self._body.module, type(output)))
        split = _logits(self._module, states)
        if split.shape != whole.shape or not alike(split, whole):
            raise UnsuitableModelError("its logits are not made from its last hidden states alone")
        return states.shape[-1], whole.shape[-1]

    def _eos_token_ids(self) -> tuple[int, ...]:
        config: Any = self._module.config
        return token_ids(config.get_text_config().eos_token_id)


def _find_body(module: nn.Module) -> tuple[str, nn.Module]:
    """The decoder within a causal language model, and its name there.

    Raises:
        UnsuitableModelError: the model does not say which of its parts it is.
    """
    candidates: tuple[Any, ...] = (module.get_decoder(), module.base_model)  # type: ignore[operator]  # transformers'
    for candidate in candidates:
        for name, part in module.named_modules():
            if name and part is candidate:
                return name, part
    raise UnsuitableModelError("its decoder cannot be told from its head")


# -- transformers' registries -----------------------------------------------------------------------------------------


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Our attention, as transformers calls it."""
    seat: _Seat | AttentionRecorder = getattr(module, _SEAT)
    return seat.attend(AttentionCall(module, query, key, value, attention_mask, options)), None


def _stand_in_mask(kv_length: int, mask_function: MaskFunction, **options: Any) -> Tensor:
    """The mask that is made while a model is looked at."""
    return _recorder.get().mask(kv_length, mask_function)


for _name in (_ATTENTION, PROBE):
    ALL_ATTENTION_FUNCTIONS.register(_name, _attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(PROBE, _stand_in_mask)
