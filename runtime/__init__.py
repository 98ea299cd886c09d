"""The runtime: everything between a request tree and the tokens that come back. Importing it loads no torch."""

from __future__ import annotations

from .config import EngineConfig
from .launch import launch

__all__ = ["EngineConfig", "launch"]
