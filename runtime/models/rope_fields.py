"""Rotary embeddings as config.json describes them: transformers 5 in one object, older files in two places."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .config import Rope, RopeScaling
from .config_fields import ConfigFields

_KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeFields:
    """What a config says of rotary embeddings.

    Attributes:
        full: of layers that see all.
        sliding: of layers with a window, where config.json has one for them.
        rotary_dim: components of a head that are turned; None is all.
    """

    full: Rope
    sliding: Rope | None
    rotary_dim: int | None


def read_rope(fields: ConfigFields, *, head_dim: int, context: int, theta: float = 10000.0) -> RopeFields:
    """Read either spelling.

    Args:
        context: context length of pretraining, where a scaling does not say it.
        theta: where the config has none.

    Raises:
        UnsupportedModelError: rope_type is not known.
        ModelLoadError: a field is missing or wrong.
    """
    named = fields.inner("rope_parameters" if fields.get("rope_parameters") else "rope_scaling")
    by_layer_type = isinstance(named.get("full_attention"), dict)
    full = named.inner("full_attention") if by_layer_type else named
    theta = fields.number("rope_theta", theta)
    local = fields.optional_number("rope_local_base_freq")
    sliding = None if local is None else Rope(local)
    if by_layer_type and named.get("sliding_attention"):
        sliding = _rope(named.inner("sliding_attention"), local or theta, context)
    return RopeFields(_rope(full, theta, context), sliding, _rotary_dim(fields, full, head_dim))


def _rotary_dim(fields: ConfigFields, parameters: ConfigFields, head_dim: int) -> int | None:
    share = parameters.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    rotary_dim = int(head_dim * share)
    if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
        raise fields.error(
            f"partial_rotary_factor={share} of head_dim={head_dim} is {rotary_dim}: it must be an even number up to it"
        )
    return rotary_dim if rotary_dim < head_dim else None


def _rope(parameters: ConfigFields, theta: float, context: int) -> Rope:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    theta = parameters.number("rope_theta", theta)
    match kind:
        case "default":
            return Rope(theta)
        case "linear":
            return Rope(theta, RopeScaling("linear", parameters.number("factor")))
        case "llama3":
            return Rope(theta, _llama3(parameters, context))
        case "yarn":
            return Rope(theta, _yarn(parameters, context))
        case _:
            raise parameters.unsupported(f"rope_type={kind!r} is not supported; known: {', '.join(_KINDS)}")


def _llama3(parameters: ConfigFields, context: int) -> RopeScaling:
    return RopeScaling(
        "llama3",
        parameters.number("factor"),
        parameters.number("low_freq_factor"),
        parameters.number("high_freq_factor"),
        _pretrained(parameters, context),
    )


def _yarn(parameters: ConfigFields, context: int) -> RopeScaling:
    factor = parameters.number("factor")
    return RopeScaling(
        "yarn",
        factor,
        parameters.number("beta_slow", 1.0),
        parameters.number("beta_fast", 32.0),
        _pretrained(parameters, context),
        attention_factor=parameters.number("attention_factor", _attention_factor(parameters, factor)),
        whole_steps=parameters.flag("truncate", default=True),
    )


def _attention_factor(parameters: ConfigFields, factor: float) -> float:
    """Source: Peng et al., "YaRN", 2023, section 3.4, with the two weights that DeepSeek's models add."""

    def growth(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return growth(parameters.number("mscale")) / growth(parameters.number("mscale_all_dim"))
    return growth(1.0)


def _pretrained(parameters: ConfigFields, context: int) -> int:
    return int(parameters.number("original_max_position_embeddings", context))
