"""The grammar masks on the device, by row id."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .batch import UNCONSTRAINED, Int32Array, UInt32Array
from .errors import EngineError
from .pinned_staging import PinnedStaging


class MaskTable:
    """Rows of packed bits: bit i % 32 of word i // 32 is token i.

    Attributes:
        words: [rows + 1, ceil(vocab_size / 32)] int32. The last row, of unconstrained rows, allows everything.
    """

    def __init__(self, rows: int, vocab_size: int, device: torch.device, staging: PinnedStaging) -> None:
        self._vocab_size = vocab_size
        self._staging = staging
        self.words = torch.zeros((rows + 1, -(-vocab_size // 32)), dtype=torch.int32, device=device)
        self.words[rows] = -1
        self._ceilings = _byte_ceilings().to(device)

    @staticmethod
    def bytes_of(rows: int, vocab_size: int) -> int:
        """Memory of a table."""
        return (rows + 1) * -(-vocab_size // 32) * torch.int32.itemsize

    def write(self, updates: tuple[Int32Array, UInt32Array] | None) -> None:
        """Write rows: ids [U] and packed bits [U, ceil(vocab_size / 32)], in one copy.

        Raises:
            EngineError: the bits are for another number of logits.
        """
        if updates is None:
            return
        rows, bits = updates
        if bits.shape != (len(rows), self.words.shape[1]):
            raise EngineError(
                f"mask bits have shape {bits.shape}, but {len(rows)} rows of {self._vocab_size} logits "
                f"need {(len(rows), self.words.shape[1])}"
            )
        packed = np.ascontiguousarray(bits, dtype=np.uint32).view(np.int32).ravel()
        if not len(rows):
            return
        places, values = self._staging.upload([np.asarray(rows, dtype=np.int32), packed])
        self.words[places] = values.view(len(rows), -1)

    def ceilings(self, mask_rows: Int32Array) -> Tensor:
        """[S, ceil(vocab_size / 32) * 32] float32: +inf where the row's mask allows the token, -inf where it does not.

        Args:
            mask_rows: [S], ids of rows; `UNCONSTRAINED` allows everything.
        """
        rows = np.where(mask_rows == UNCONSTRAINED, len(self.words) - 1, mask_rows)
        (on_device,) = self._staging.upload([rows.astype(np.int32)])
        packed = self.words[on_device].view(torch.uint8)
        return self._ceilings.index_select(0, packed.flatten().int()).view(len(mask_rows), -1)

    def check_invariants(self) -> None:
        """Raise AssertionError if the row of unconstrained rows does not allow everything."""
        if not bool((self.words[-1] == -1).all()):
            raise AssertionError("the mask row of unconstrained rows was overwritten")


def _byte_ceilings() -> Tensor:
    """[256, 8] float32: for each byte of a packed mask, +inf where its bit is set and -inf where it is not."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return torch.from_numpy(np.where(bits, np.float32(np.inf), np.float32(-np.inf)))
