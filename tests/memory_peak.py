"""How much memory torch's operations take at once: the tensors that are alive, counted where they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryPeak(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    """While entered, follows the tensors that operations give. What an operation takes within itself is not seen.

    Attributes:
        now_bytes: of the tensors made so far that are still alive.
        peak_bytes: the most that ever was.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak_bytes = 0

    @property
    def now_bytes(self) -> int:
        self._alive = {
            key: kept
            for key, kept in self._alive.items()
            if not kept[0].expired()  # type: ignore[no-untyped-call]  # as above
        }
        return sum(size for _, size in self._alive.values())

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {_address(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and _address(tensor) not in given:
                storage = tensor.untyped_storage()
                kept = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # as above
                self._alive[_address(tensor)] = kept, storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)
        return result


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
