"""Reads a branch's text while it comes: for a thread, and for asyncio without a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from .execution import Execution
from .tree import ProgramTree

Value = TypeVar("Value")


class TextCursor:
    """A place in the text of some nodes. `poll` returns what came since the last call.

    Args:
        tree: where the nodes are.
        find: the nodes to read, in order, or None while they are not known. It may be a list that still grows.
        over: whether no node will be added any more. May raise what ended the program instead.
        answer: which answer to read of nodes that have several.
    """

    def __init__(
        self,
        tree: ProgramTree,
        find: Callable[[], Sequence[int] | None],
        over: Callable[[], bool],
        *,
        answer: int = 0,
    ) -> None:
        self._tree = tree
        self._find = find
        self._over = over
        self._answer = answer
        self._node_ids: Sequence[int] | None = None
        self._node = 0
        self._part = 0

    def poll(self) -> list[str] | None:
        """New pieces of text; None if there are none yet, and an empty list at the end. Called under the lock.

        Raises:
            NodeFailedError: the next node failed; what came before it has been returned.
        """
        if self._node_ids is None:
            self._node_ids = self._find()
        if self._node_ids is None:
            return None
        pieces = self._take(self._node_ids)
        if pieces:
            return pieces
        if self._node < len(self._node_ids):
            node_id = self._node_ids[self._node]
            if self._tree.records[node_id].failure is not None:
                raise self._tree.error_of(node_id)
            return None
        return [] if self._over() else None

    def _take(self, node_ids: Sequence[int]) -> list[str]:
        """Pieces from the cursor on, up to a node that is not done or has failed."""
        pieces: list[str] = []
        while self._node < len(node_ids):
            record = self._tree.records[node_ids[self._node]]
            answer = record.answers[self._answer]
            pieces += filter(None, answer[self._part :])
            self._part = len(answer)
            if not record.done or record.failure is not None:
                break
            self._node += 1
            self._part = 0
        return pieces


async def wait_async(execution: Execution, poll: Callable[[], Value | None]) -> Value:
    """As `Execution.wait`, for asyncio: what `poll` returns once it is not None."""
    with execution.changed:
        value = poll()
    if value is not None:
        return value
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    changed = asyncio.Event()
    woken = False  # changes under the execution's lock; the loop is woken once for all changes until it looks

    def wake() -> None:
        nonlocal woken
        if woken:
            return
        woken = True
        if threading.get_ident() == thread:
            changed.set()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(changed.set)

    execution.listen(wake)
    try:
        while True:
            changed.clear()
            with execution.changed:
                woken = False
                value = poll()
            if value is not None:
                return value
            execution.about_to_wait()
            execution.flush()
            await changed.wait()
    finally:
        execution.unlisten(wake)
