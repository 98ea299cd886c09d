"""Models by the name that config.json gives their architecture. Importing this package does not import torch."""

from __future__ import annotations

from .base import CausalLM, ModelFactory
from .config import ModelConfig, Rope, RopeScaling, UnsupportedModelError
from .families import ARCHITECTURES

__all__ = [
    "ARCHITECTURES",
    "CausalLM",
    "ModelConfig",
    "ModelFactory",
    "Rope",
    "RopeScaling",
    "UnsupportedModelError",
    "model_factory",
]


def model_factory(architecture: str) -> ModelFactory:
    """What builds models of an architecture, their weights not yet loaded.

    Raises:
        UnsupportedModelError: it is not known; lists those that are.
    """
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"architecture {architecture!r} is not supported; known: {', '.join(ARCHITECTURES)}"
        )
    from .decoder import Decoder

    return Decoder
