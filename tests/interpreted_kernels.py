"""To import before kernels run in Triton's interpreter: its loops over numbers that were loaded, for today's numpy.

Triton 3.6 turns a loop's bound, an array of one number, into an int in a way that numpy 2.4 refuses.
"""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter

_patch_tensor = interpreter._patch_lang_tensor


def _patch_tensor_and_index(tensor: Any, scope: Any) -> None:
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_tensor_and_index
