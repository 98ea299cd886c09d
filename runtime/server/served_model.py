"""The model as clients name it, and the ids of answers."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from palmette.runtime.program import ModelInfo
from palmette.runtime.server_settings import ServerSettings

from .errors import ApiError


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the server serves.

    Attributes:
        name: what answers call the model.
        names: every name that requests may use: the served one, the one it was loaded by, that without what stands
            before the last slash, and "default". A path that ends in one of them is one too.
        started_s: when the server started, in seconds of Unix time.
    """

    name: str
    names: frozenset[str]
    info: ModelInfo
    started_s: int

    @classmethod
    def of(cls, info: ModelInfo, settings: ServerSettings) -> ServedModel:
        name = settings.model_name or info.name
        names = frozenset((name, info.name, info.name.rstrip("/").rpartition("/")[2], "default"))
        return cls(name, names, info, int(time.time()))

    def check(self, asked: str | None) -> None:
        """Raise ApiError, a 404, if a request names a model that is not served; none named is the one there is."""
        if asked is not None and asked not in self.names and not self._is_path(asked):
            message = f"the model {asked!r} is not served here; this server has {self.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def _is_path(self, asked: str) -> bool:
        """Whether a client names the folder that the model was loaded from, as other servers call it."""
        return asked.startswith(("/", "./", "~/")) and asked.rstrip("/").rpartition("/")[2] in self.names


def new_id(prefix: str) -> str:
    """An id for an answer, such as ``chatcmpl-8c1f...``."""
    return f"{prefix}-{random.getrandbits(96):024x}"
