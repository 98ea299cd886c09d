"""Shape of a model, read from config.json once and then frozen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from palmette.runtime.errors import ModelLoadError

RopeKind = Literal["default", "linear", "llama3", "divisors"]
_ROPE_KINDS_IN_CONFIG = ("default", "linear", "llama3")
_ACTIVATIONS = ("silu", "swish")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts longer than those of pretraining.

    Attributes:
        kind: "default" leaves them; "linear" divides all by `factor`; "llama3" divides low frequencies by `factor`,
            leaves high ones and blends between; "divisors" divides each by its own number (as GGUF files store it).
        factor: >= 1.
        low_freq_factor, high_freq_factor: wavelengths above original_context / low are low frequencies, those below
            original_context / high are high ones.
        original_context: context length of pretraining, in tokens.
        divisors: [head_dim / 2], for kind "divisors".
    """

    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a decoder of the Llama family.

    Attributes:
        architecture: as in `architectures` of config.json.
        vocab_size: number of logits.
        num_heads, num_kv_heads: query heads, and the key and value heads that groups of them share.
        sliding_window: a token sees this many tokens, itself among them; None is all before it.
        context_length: most tokens the model was made for.
        eos_token_ids: end-of-sequence tokens that config.json names.
        dtype: of the checkpoint, "float32" where it does not say.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    context_length: int
    rope: RopeScaling = RopeScaling()
    sliding_window: int | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `folder`/config.json.

        Raises:
            ModelLoadError: it is missing, is not a JSON object, lacks a field, or asks for what is not supported.
        """
        path = folder / "config.json"
        return cls.from_dict(read_json_object(path), source=str(path))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str) -> ModelConfig:
        """Build from the fields of a config.json, in transformers 4's or 5's spelling. `source` is named in errors.

        Raises:
            ModelLoadError: a field is missing or wrong, or asks for what is not supported.
        """
        return _ConfigReader(values, source).read()


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder.

    Raises:
        ModelLoadError: the file is missing, unreadable, or holds anything else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path.parent} has no {path.name}: is it a model folder?") from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelLoadError(f"{path} must hold a JSON object, not {type(values).__name__}")
    return values


class _ConfigReader:
    """Takes the fields of one config.json apart."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values = values
        self._source = source

    def read(self) -> ModelConfig:
        self._refuse_unsupported()
        heads = self._size("num_attention_heads")
        kv_heads = self._size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise self._error(f"num_attention_heads={heads} is not a multiple of num_key_value_heads={kv_heads}")
        context = self._size("max_position_embeddings", 2048)
        theta, rope = self._rope(context)
        return ModelConfig(
            architecture=self._architecture(),
            vocab_size=self._size("vocab_size"),
            hidden_size=self._size("hidden_size"),
            intermediate_size=self._size("intermediate_size"),
            num_layers=self._size("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=self._head_dim(heads),
            rms_norm_eps=self._number(self._values, "rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope=rope,
            context_length=context,
            sliding_window=self._sliding_window(),
            attention_bias=self._flag("attention_bias"),
            mlp_bias=self._flag("mlp_bias"),
            tie_word_embeddings=self._flag("tie_word_embeddings"),
            eos_token_ids=token_ids(self._values.get("eos_token_id")),
            dtype=str(self._values.get("dtype") or self._values.get("torch_dtype") or "float32"),
        )

    def _refuse_unsupported(self) -> None:
        if quantization := self._values.get("quantization_config"):
            method = quantization.get("quant_method", "?") if isinstance(quantization, Mapping) else quantization
            raise self._error(
                f"quantization_config ({method}) is not supported: give a float32, bfloat16 or float16 checkpoint"
            )
        if (activation := self._values.get("hidden_act", "silu")) not in _ACTIVATIONS:
            raise self._error(f"hidden_act={activation!r} is not supported; known: {', '.join(_ACTIVATIONS)}")

    def _architecture(self) -> str:
        names = self._values.get("architectures")
        if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
            raise self._error(f"architectures must be a list of one name, not {names!r}")
        return names[0]

    def _head_dim(self, heads: int) -> int:
        if self._values.get("head_dim") is not None:
            head_dim = self._size("head_dim")
        else:
            hidden = self._size("hidden_size")
            if hidden % heads:
                raise self._error(f"hidden_size={hidden} is not a multiple of num_attention_heads={heads}")
            head_dim = hidden // heads
        if head_dim % 2:
            raise self._error(f"head_dim={head_dim} must be even for rotary embeddings")
        return head_dim

    def _sliding_window(self) -> int | None:
        if self._values.get("sliding_window") is None or self._values.get("use_sliding_window") is False:
            return None
        return self._size("sliding_window")

    def _rope(self, context: int) -> tuple[float, RopeScaling]:
        """theta and scaling: transformers 5 keeps both in rope_parameters, older files in two places."""
        parameters = self._values.get("rope_parameters") or self._values.get("rope_scaling") or {}
        if not isinstance(parameters, Mapping):
            raise self._error(f"rope_parameters must be an object, not {parameters!r}")
        theta_default = self._number(self._values, "rope_theta", 10000.0)
        theta = self._number(parameters, "rope_theta", theta_default)
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        if kind not in _ROPE_KINDS_IN_CONFIG:
            raise self._error(f"rope_type={kind!r} is not supported; known: {', '.join(_ROPE_KINDS_IN_CONFIG)}")
        if kind == "default":
            return theta, RopeScaling()
        return theta, self._scaling(kind, parameters, context)

    def _scaling(self, kind: Literal["linear", "llama3"], parameters: Mapping[str, Any], context: int) -> RopeScaling:
        factor = self._number(parameters, "factor")
        if kind == "linear":
            return RopeScaling("linear", factor)
        return RopeScaling(
            "llama3",
            factor,
            self._number(parameters, "low_freq_factor"),
            self._number(parameters, "high_freq_factor"),
            int(self._number(parameters, "original_max_position_embeddings", context)),
        )

    def _size(self, name: str, default: int | None = None) -> int:
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._error(f"{name} must be a whole number of at least 1, not {value!r}")
        return value

    def _number(self, values: Mapping[str, Any], name: str, default: float | None = None) -> float:
        value = values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self._error(f"{name} must be a number above 0, not {value!r}")
        return float(value)

    def _flag(self, name: str) -> bool:
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise self._error(f"{name} must be true or false, not {value!r}")
        return value

    def _error(self, message: str) -> ModelLoadError:
        return ModelLoadError(f"{self._source}: {message}")


def token_ids(value: object) -> tuple[int, ...]:
    """Token ids from a field that holds one, several or none, such as eos_token_id."""
    if isinstance(value, int):
        return (value,)
    return tuple(item for item in value if isinstance(item, int)) if isinstance(value, list) else ()
