"""Responses that can be fetched and gone on from: the last ones, in memory."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from .errors import ApiError
from .responding import json_bytes

MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and what it answered.

    Attributes:
        response: as it was returned.
        items: its input, what that went on from included, each with an id.
    """

    response: dict[str, Any]
    items: list[dict[str, Any]]

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """What the next response goes on from."""
        return [*self.items, *self.response["output"]]


class ResponseStore:
    """The responses last used, at most so many and of so many bytes of JSON; older ones are forgotten."""

    def __init__(self, *, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, stored: StoredResponse) -> None:
        """Keep a response. One that is larger than the whole store is not kept."""
        size = len(json_bytes(stored.response)) + len(json_bytes(stored.items))
        if size > self._max_bytes:
            return
        self._stored[stored.response["id"]] = (stored, size)
        self._bytes += size
        while len(self._stored) > self._max_responses or self._bytes > self._max_bytes:
            self._bytes -= self._stored.popitem(last=False)[1][1]

    def get(self, response_id: str, *, param: str | None = None) -> StoredResponse:
        """A response.

        Raises:
            ApiError: there is none of this id, a 404.
        """
        if response_id not in self._stored:
            message = (
                f"there is no response {response_id!r}: the last {self._max_responses} are kept in memory, those that"
                " were not stored are not; send the whole conversation as input"
            )
            raise ApiError(404, message, param=param, code="response_not_found")
        self._stored.move_to_end(response_id)
        return self._stored[response_id][0]

    def remove(self, response_id: str) -> None:
        """Forget a response.

        Raises:
            ApiError: there is none of this id, a 404.
        """
        self.get(response_id)
        self._bytes -= self._stored.pop(response_id)[1]
