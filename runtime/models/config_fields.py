"""The fields of a config.json, each checked when it is taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palmette.runtime.errors import ModelLoadError

from .config import Activation, UnsupportedModelError, token_ids

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_LARGEST = 2**31 - 1  # positions and token ids are 32-bit numbers
_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """Fields of a config.json or of an object in it. `source` is named in errors."""

    values: Mapping[str, Any]
    source: str

    def with_defaults(self, **defaults: object) -> ConfigFields:
        """The same, where absent fields are these."""
        return ConfigFields({**defaults, **self.values}, self.source)

    def get(self, name: str) -> Any:
        """A field as it is; None where it is absent."""
        return self.values.get(name)

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"{name} must be a whole number of at least 1, not {value!r}")
        if value > _LARGEST:
            raise self.error(f"{name} must be a whole number of at most {_LARGEST}, not {value}")
        return value

    def optional_size(self, name: str) -> int | None:
        """A whole number of at least 1, or None."""
        return None if self.values.get(name) is None else self.size(name)

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0, not infinite."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(f"{name} must be a number above 0, not {value!r}")
        try:
            return float(value)
        except OverflowError:
            raise self.error(f"{name} is too large") from None

    def optional_number(self, name: str) -> float | None:
        """A number above 0, or None."""
        return None if self.values.get(name) is None else self.number(name)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{name} must be true or false, not {value!r}")
        return value

    def inner(self, name: str) -> ConfigFields:
        """The fields of an object; none where it is absent."""
        value = self.values.get(name) or {}
        if not isinstance(value, Mapping):
            raise self.error(f"{name} must be an object, not {value!r}")
        return ConfigFields(value, self.source)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Token ids from a field that holds one, several or none."""
        value = self.values.get(name)
        ids = token_ids(value)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if len(ids) < len(listed):
            raise self.error(f"{name} must be a token id or a list of them, not {value!r}")
        return ids

    def architecture(self) -> str:
        """The one name in `architectures`."""
        names = self.values.get("architectures")
        if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
            raise self.error(f"architectures must be a list of one name, not {names!r}")
        return names[0]

    def activation(self, name: str) -> Activation:
        """The function of the MLP's gate."""
        value = self.values.get(name, "silu")
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            raise self.unsupported(f"{name}={value!r} is not supported; known: {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[value]

    def layer_flags(self, name: str, layers: int) -> tuple[bool, ...] | None:
        """Numbers or bools by layer, as true and false; None where the field is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < layers or not all(isinstance(each, int) for each in value):
            raise self.error(f"{name} must be a list of 0 and 1, one for each of {layers} layers, not {value!r}")
        return tuple(bool(each) for each in value[:layers])

    def sliding_layers(self, layers: int) -> tuple[bool, ...] | None:
        """Which layers `layer_types` gives a window; None where it is absent."""
        types = self.values.get("layer_types")
        if types is None:
            return None
        if not isinstance(types, list) or len(types) < layers:
            raise self.error(f"layer_types must be a list of {layers} names, one for each layer, not {types!r}")
        if unknown := [each for each in types if each not in _LAYER_TYPES]:
            raise self.unsupported(
                f"layer_types has {unknown[0]!r}, which is not supported; known: {', '.join(_LAYER_TYPES)}"
            )
        return tuple(each == "sliding_attention" for each in types[:layers])

    def error(self, message: str) -> ModelLoadError:
        """The error of a broken config."""
        return ModelLoadError(f"{self.source}: {message}")

    def unsupported(self, message: str) -> UnsupportedModelError:
        """The error of a config that asks for more than there is."""
        return UnsupportedModelError(f"{self.source}: {message}")
