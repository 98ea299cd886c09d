"""Model folders that transformers' own code runs: which they are, and how their weights are read.

No code of a folder is run, no pickle is read and nothing is fetched.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from palmette.runtime.config import LoadFormat
from palmette.runtime.errors import ModelLoadError
from palmette.runtime.layers.placement import Placement

from .config import read_json_object
from .transformers_fallback import PROBE, ModelBuilder, TransformersModel, parameter_slots
from .transformers_probe import NOT_CALLED, UnsuitableModelError

logger = logging.getLogger("palmette.engine")

_MOST_NAMES = 5
_LONGEST_REASON = 400
_ROPE_BY_LENGTH = ("longrope", "dynamic")


class TransformersCheckpoint:
    """A model folder that transformers knows how to run. Its config is read, its weights are not yet.

    Attributes:
        dtype: of the checkpoint.

    Raises:
        ModelLoadError: transformers has no causal language model for it, or it needs what Palmette does not do.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config = _read_config(path)
        self._text = self._config.get_text_config()
        self._architecture = _architecture(self._config, path)
        self.dtype = str(self._text.dtype or self._config.dtype or "float32").removeprefix("torch.")

    def load(self, placement: Placement, *, load_format: LoadFormat = "auto", seed: int = 0) -> TransformersModel:
        """Build the model, fill it and look at what it asks of attention.

        Raises:
            ModelLoadError: a tensor is missing or of another shape, or the model cannot be run; says why.
        """
        from palmette.runtime.weights import SafetensorsFolder, fill_randomly

        if placement.world > 1:
            raise ModelLoadError(
                f"{self.path}: {self._architecture} runs through transformers' own code, which is not split over "
                f"{placement.world} ranks; launch it on one"
            )
        if load_format != "dummy":
            SafetensorsFolder(self.path).check_weights()  # transformers would convert int8 and float8 as they are
        module = self._built(placement, load_format)
        if load_format == "dummy":
            fill_randomly(parameter_slots(module), seed=seed)
        with torch.inference_mode():
            model = self._checked(module.eval(), placement)
        logger.info("%s runs through transformers %s", self._architecture, transformers.__version__)
        return model

    def _built(self, placement: Placement, load_format: LoadFormat) -> nn.Module:
        """The model in transformers' own form, with or without its weights."""
        try:
            with _quiet():
                return self._empty(placement) if load_format == "dummy" else self._read(placement)
        except ModelLoadError:
            raise
        except Exception as error:  # transformers raises whatever its parts raise
            if isinstance(error, KeyError) and PROBE in str(error):
                raise _unsuitable(self.path, self._architecture, NOT_CALLED) from error
            raise ModelLoadError(
                f"{self.path}: transformers cannot load {self._architecture}: {_one_line(error)}"
            ) from error

    def _empty(self, placement: Placement) -> nn.Module:
        with torch.device(placement.device):
            return AutoModelForCausalLM.from_config(  # type: ignore[no-any-return]  # transformers is untyped
                self._config, dtype=placement.dtype, attn_implementation=PROBE, trust_remote_code=False
            )

    def _read(self, placement: Placement) -> nn.Module:
        module, report = AutoModelForCausalLM.from_pretrained(
            self.path,
            config=self._config,
            dtype=placement.dtype,
            attn_implementation=PROBE,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # they are reported, and then refused by name
            output_loading_info=True,
        )
        self._check(report)
        return module.to(placement.device)  # type: ignore[no-any-return]  # transformers is untyped

    def _check(self, report: Mapping[str, Any]) -> None:
        """Refuse a checkpoint whose tensors are not those of the model."""
        if mismatched := sorted(report["mismatched_keys"]):
            name, found, wanted = mismatched[0]
            raise ModelLoadError(
                f"{self.path}: tensor {name!r} has shape {tuple(found)}, config.json asks for {tuple(wanted)}"
            )
        if missing := sorted(report["missing_keys"]):
            more = f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
            raise ModelLoadError(
                f"{self.path} lacks tensors of {self._architecture}: {', '.join(missing[:_MOST_NAMES])}{more}"
            )
        if unexpected := sorted(report["unexpected_keys"]):
            logger.warning("%s: %d tensors are not used, such as %s", self.path, len(unexpected), unexpected[0])

    def _checked(self, module: nn.Module, placement: Placement) -> TransformersModel:
        """The model, once it was seen to give right answers on pages."""
        try:
            return ModelBuilder(module, placement).build(self._architecture, _context_length(self._text), self.dtype)
        except UnsuitableModelError as error:
            raise _unsuitable(self.path, self._architecture, str(error)) from None
        except Exception as error:  # the model's own code, on an input that it may not have been written for
            reason = f"it failed on one row of tokens ({_one_line(error)})"
            raise _unsuitable(self.path, self._architecture, reason) from error


def _unsuitable(path: Path, architecture: str, reason: str) -> UnsuitableModelError:
    return UnsuitableModelError(
        f"{path}: {architecture} is not supported, neither by Palmette itself nor through transformers "
        f"{transformers.__version__}: {reason}. Use a model of another architecture"
    )


# -- the config -------------------------------------------------------------------------------------------------------


def _read_config(path: Path) -> Any:
    """transformers' config of a model folder. No code of the folder is run.

    Raises:
        ModelLoadError: transformers does not know the model's type or refuses its config.
    """
    file = path / "config.json"
    values = read_json_object(file)
    try:
        with _quiet():
            config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises whatever its parts raise
        raise ModelLoadError(f"{file}: {_why_refused(values, error)}") from error
    return config


def _why_refused(values: Mapping[str, Any], error: Exception) -> str:
    model_type, version = values.get("model_type"), transformers.__version__
    if isinstance(model_type, str) and model_type in CONFIG_MAPPING:
        return f"transformers {version} refuses it: {_one_line(error)}"
    if "auto_map" in values:
        return (
            "the model comes with code of its own (auto_map), which Palmette does not run, and "
            f"transformers {version} has none for model_type={model_type!r}"
        )
    return (
        f"architectures={values.get('architectures')!r}, model_type={model_type!r} is known neither to Palmette nor "
        f"to transformers {version}"
    )


def _architecture(config: Any, path: Path) -> str:
    """Name of the class that runs the model.

    Raises:
        ModelLoadError: there is none, or it is no plain decoder.
    """
    file = path / "config.json"
    if getattr(config, "quantization_config", None):
        raise ModelLoadError(f"{file}: quantization_config is not supported: give a checkpoint of float weights")
    named = getattr(config, "architectures", None) or [None]
    if config.is_encoder_decoder:
        raise ModelLoadError(f"{file}: {named[0]} has an encoder; Palmette runs decoder-only models")
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise ModelLoadError(
            f"{file}: {named[0]} (model_type={config.model_type!r}) is not a causal language model of transformers "
            f"{transformers.__version__}"
        )
    known = AutoModelForCausalLM._model_mapping[type(config)]
    classes = known if isinstance(known, tuple) else (known,)
    names = [each.__name__ for each in classes]
    if named[0] is not None and named[0] not in names:
        raise ModelLoadError(f"{file}: {named[0]} is not a causal language model; {', '.join(names)} would be one")
    return names[0] if named[0] is None else str(named[0])


def _context_length(text: Any) -> int:
    """Most tokens for which rotary frequencies are the same whatever else is in the batch."""
    longest = int(getattr(text, "max_position_embeddings", None) or 2048)
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    by_layer_type = [each for each in rope.values() if isinstance(each, dict)]
    bounds = [
        each.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
        for each in by_layer_type or [rope]
        if each.get("rope_type", each.get("type")) in _ROPE_BY_LENGTH
    ]
    context = min([longest, *(int(bound) for bound in bounds if bound)])
    if context < longest:
        logger.warning(
            "context_length is %d, not %d: transformers changes this model's rotary frequencies beyond it",
            context,
            longest,
        )
    return context


def _one_line(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' progress bars and notes off the terminal; what is wrong is raised."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
