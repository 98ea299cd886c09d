"""The engines that can compile grammars, by name: Palmette's own, and others as optional extras."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import import_module

from palmette.constrained.errors import GrammarBackendError

from .backend import GrammarBackend, TokenGrammar
from .names import GRAMMAR_BACKENDS, GrammarBackendName

_CLASSES = {
    "native": "NativeBackend",
    "outlines": "OutlinesBackend",
    "llguidance": "LLGuidanceBackend",
    "xgrammar": "XGrammarBackend",
}

__all__ = ["GRAMMAR_BACKENDS", "GrammarBackend", "GrammarBackendName", "TokenGrammar", "grammar_backend"]


@cache
def grammar_backend(name: str) -> GrammarBackend:
    """The backend called `name`; its package is imported now.

    Raises:
        GrammarBackendError: there is none of that name, or its package is not installed.
    """
    if name not in _CLASSES:
        near = difflib.get_close_matches(str(name), GRAMMAR_BACKENDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise GrammarBackendError(
            f"there is no grammar backend {name!r}: it is one of {', '.join(GRAMMAR_BACKENDS)}{hint}"
        )
    try:
        module = import_module(f"{__name__}.{name}")
    except ImportError as error:
        raise GrammarBackendError(
            f"the grammar backend {name!r} needs a package that is not installed ({error}); "
            "pip install 'palmette[grammars]'"
        ) from error
    backend: GrammarBackend = getattr(module, _CLASSES[name])()
    return backend
