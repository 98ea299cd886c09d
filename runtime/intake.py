"""From the message that asks for a request to the request itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from .detokenizer import OutputText, UnreadText
from .messages import NewRequest
from .request import Request
from .score_request import ScoreRequest, TreeLayout
from .stops import compiled_stops, is_compiled, usable_stops

if TYPE_CHECKING:
    from palmette.constrained.errors import PalmetteError
    from palmette.constrained.stop_pattern import StopPatterns


class Intake:
    """Makes requests. Those whose stop patterns must be compiled first come a little later than the others.

    All methods are for the scheduler's thread.

    Args:
        token_bytes: exact bytes of each token, for stop strings.
        end_ids: the model's end-of-sequence tokens.
        wake: called from another thread when `take_ready` has something to give.
        page_size: of the KV pool.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        end_ids: AbstractSet[int],
        wake: Callable[[], None],
        *,
        page_size: int,
    ) -> None:
        self._page_size = page_size
        self._token_bytes = token_bytes
        self._end_ids = end_ids
        self._wake = wake
        self._compiling: dict[str, tuple[NewRequest, Future[StopPatterns | PalmetteError]]] = {}
        self._executor: ThreadPoolExecutor | None = None

    def take(self, new: NewRequest) -> Request | None:
        """The request that `new` asks for; None where `take_ready` will give it.

        Raises:
            PalmetteError: its stop patterns cannot be used.
        """
        patterns = new.params.stop_regex
        if is_compiled(patterns):
            return self._request(new)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="palmette-stops")
        job = self._executor.submit(compiled_stops, patterns)
        self._compiling[new.id] = new, job
        job.add_done_callback(lambda _: self._wake())
        return None

    def take_ready(self) -> list[NewRequest]:
        """Those that `take` has kept and that are to be given to it again: their patterns were compiled."""
        if not self._compiling:
            return []
        ready = [new for new, job in self._compiling.values() if job.done()]
        for new in ready:
            del self._compiling[new.id]
        return ready

    def drop(self, request_id: str) -> bool:
        """Forget a request that is still kept; False where none of this id is."""
        return self._compiling.pop(request_id, None) is not None

    def close(self) -> None:
        """Compile no more."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _request(self, new: NewRequest) -> Request:
        token_ids = np.frombuffer(new.prompt_ids, dtype=np.int32)
        if new.tree is not None:
            return self._score_request(new, TreeLayout.of(token_ids, new.tree, self._page_size))
        return Request(
            id=new.id,
            prompt_ids=token_ids.copy(),
            params=new.params,
            grammar=new.grammar,
            end_ids=self._end_ids,
            group=new.group,
            text=self._text(new),
            stream=new.stream,
            priority=new.options.priority,
            namespace=new.options.cache_salt,
            timeout_s=new.options.timeout_s,
            place=new.program,
        )

    @staticmethod
    def _score_request(new: NewRequest, tree: TreeLayout) -> ScoreRequest:
        return ScoreRequest(
            id=new.id,
            prompt_ids=tree.token_ids,
            tree=tree,
            params=new.params,
            group=new.group,
            stream=new.stream,
            priority=new.options.priority,
            namespace=new.options.cache_salt,
            timeout_s=new.options.timeout_s,
            place=new.program,
        )

    def _text(self, new: NewRequest) -> OutputText | UnreadText:
        params = new.params
        if not params.stop and not params.stop_regex:
            return UnreadText()
        return OutputText(self._token_bytes, params.stop, usable_stops(params.stop_regex))
