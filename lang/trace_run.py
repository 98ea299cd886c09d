"""Runs of which a trace is wanted: with log-probabilities, and with a state whatever becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .function import Function
from .run import Run

TRACE_OPTIONS: Mapping[str, Any] = {"logprobs": 5, "return_text_in_logprobs": True}
"""What gens are asked for where neither they nor the program say otherwise. No answer changes by it."""


def traced_run(function: Function[..., Any], arguments: Mapping[str, Any]) -> Run:
    """A run on the default backend that has not begun; its state is there before, and after a failure.

    Raises:
        TypeError, RequestError, NoBackendError: as `Function.run`.
    """
    options = {name: value for name, value in TRACE_OPTIONS.items() if name not in function._defaults}
    return function._new_run((), arguments, None, timeout_s=None, batch_options=options)
