"""machine.py with its functions left as Python: for short texts, where importing numba would take longer than the work.

A script that only asks whether an answer matches (`matches`, a mock of the language) then imports nothing heavy, and
does not wait half a minute on a machine where the loops have not been compiled yet.
"""

from __future__ import annotations

import builtins
from functools import cache
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

import numpy as np

_CALLED = ("run", "shorten", "frame_hashes", "closure_hashes", "state_hashes", "trie_nodes")


def load_machine(plain: bool) -> Any:
    """The module with the loops: compiled, or left as Python."""
    if plain:
        return plain_machine()
    from . import machine as compiled  # numba takes a while to import

    return compiled


@cache
def plain_machine() -> ModuleType:
    """A second copy of machine.py, made as if numba were not installed. Equal to the compiled one in all but speed."""
    spec = find_spec("palmette.constrained.machine")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import_without_numba}
    spec.loader.exec_module(module)
    wrapping = np.errstate(over="ignore")  # hashes wrap around, which numpy else warns of
    for name in _CALLED:
        setattr(module, name, wrapping(getattr(module, name)))
    return module


def _import_without_numba(name: str, *rest: Any) -> Any:
    if name == "numba":
        raise ImportError("machine.py is to stay plain")
    return builtins.__import__(name, *rest)
