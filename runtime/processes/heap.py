"""What Python's garbage collector does in the processes of an engine."""

from __future__ import annotations

import gc

_YOUNG_OBJECTS = 20_000
_YOUNG_COLLECTIONS = 20


def settle_heap() -> None:
    """Take all that is loaded by now out of the collector's sight, and have it look seldom at what comes later.

    Modules, tables and vocabularies stay as long as the process; walking over them again and again took a tenth of a
    server's time, and held up a scheduler for up to 0.4 s at once. What a request leaves behind is nearly all freed by
    its reference counts.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, _YOUNG_COLLECTIONS)
