"""What a starting engine does when: imports of large packages, and functions of the engine, timed where they run."""

from __future__ import annotations

import builtins
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SPANS_FILE = "PALMETTE_STARTUP_SPANS"
"""Environment variable: where the scheduler's process of a measured engine writes its spans."""

_PACKAGES = ("torch", "transformers", "numba", "triton", "flashinfer", "tokenizers", "numpy")
_WATCHED = (
    ("palmette.runtime.loading", "Tokenizer.load", "tokenizer"),
    ("palmette.runtime.loading", "_warm_grammars", "grammar loops (numba), vocabulary"),
    ("palmette.runtime.loading", "build_scheduler", "scheduler, vocabulary, grammar queue"),
    ("palmette.runtime.model_runner", "ModelRunner.load", "model runner, of this:"),
    ("palmette.runtime.model_runner", "place", "  device found (CUDA initialised)"),
    ("palmette.runtime.model_runner", "_kv_storage", "  KV pool"),
    ("palmette.runtime.model_runner", "Sampler", "  sampler"),
    ("palmette.runtime.model_runner", "attention_backend", "  attention backend"),
    ("palmette.runtime.weights", "NativeCheckpoint._empty", "  memory for weights"),
    ("palmette.runtime.weights", "fill_randomly", "  random weights"),
)
"""Functions: their module, their name in it, and what they are called in the table."""


class Spans:
    """Named spans of time, in seconds since the epoch; each with the thread in which it was."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, float, float, str]] = []
        self._importing = threading.local()
        self._unwatched = list(_WATCHED)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time the block."""
        began = time.time()
        try:
            yield
        finally:
            self.spans.append((name, began, time.time(), threading.current_thread().name))

    def watch(self) -> None:
        """Time imports of large packages and the functions above from now on, as soon as their modules are there."""
        original = builtins.__import__

        @functools.wraps(original)
        def timed_import(name: str, *arguments: Any, **named: Any) -> Any:
            package = name.partition(".")[0]
            is_first = package in _PACKAGES and package not in sys.modules
            if not is_first or getattr(self._importing, "package", None):
                module = original(name, *arguments, **named)
            else:
                self._importing.package = package
                with self.span(f"import {package}"):
                    module = original(name, *arguments, **named)
                self._importing.package = None
            self._wrap_loaded()
            return module

        builtins.__import__ = timed_import

    def write(self, path: Path) -> None:
        """Write the spans as JSON."""
        path.write_text(json.dumps(self.spans))

    def _wrap_loaded(self) -> None:
        for each in list(self._unwatched):
            module = sys.modules.get(each[0])
            if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue
            self._unwatched.remove(each)
            *owners, attribute = each[1].split(".")
            owner = functools.reduce(getattr, owners, module)
            if hasattr(owner, attribute):
                setattr(owner, attribute, self._timed(getattr(owner, attribute), each[2]))

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.span(name):
                return function(*arguments, **named)

        return timed


def load_scheduler(config: Any, /) -> Any:
    """`palmette.runtime.loading.load_scheduler`, whose spans are written to the file that the environment names."""
    spans = Spans()
    spans.watch()
    with spans.span("load the scheduler, all"):
        from palmette.runtime import loading

        loaded = loading.load_scheduler(config)
    spans.write(Path(os.environ[SPANS_FILE]))
    return loaded
