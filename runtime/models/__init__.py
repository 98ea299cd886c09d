"""Models by the name that config.json gives their architecture. Importing this package does not import torch."""

from __future__ import annotations

from palmette.runtime.errors import ModelLoadError

from .base import CausalLM, ModelFactory
from .config import ModelConfig, RopeScaling

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
"""Architectures that `model_factory` knows."""

__all__ = ["ARCHITECTURES", "CausalLM", "ModelConfig", "ModelFactory", "RopeScaling", "model_factory"]


def model_factory(architecture: str) -> ModelFactory:
    """What builds models of an architecture, their weights not yet loaded.

    Raises:
        ModelLoadError: it is not known; lists those that are.
    """
    if architecture not in ARCHITECTURES:
        raise ModelLoadError(f"architecture {architecture!r} is not supported; known: {', '.join(ARCHITECTURES)}")
    from .llama import Llama

    return Llama
