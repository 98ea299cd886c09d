"""Traces as JSON, whatever texts they hold."""

from __future__ import annotations

import json
import re
from typing import Any

_HALVES = re.compile("[\ud800-\udfff]")


def trace_encoded(value: Any) -> str:
    """Compact JSON. Half of a surrogate pair, which is no character and which JSON readers refuse, is replaced."""
    return _HALVES.sub("\ufffd", json.dumps(value, ensure_ascii=False, separators=(",", ":")))
