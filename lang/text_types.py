"""Types that stand in JSON as strings: dates and times, durations, UUIDs and decimals, each as Pydantic writes them.

The schemas hold a model to what msgspec reads back: RFC 3339 allows more, such as the year 0 and leap seconds.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Mapping
from typing import Any

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DATE = f"{_YEAR}-[0-9]{{2}}-[0-9]{{2}}"
_TIME = r"[0-9]{2}:[0-9]{2}:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:[0-9]{2})"
_DURATION = "P(?:[0-9]{1,6}D)?(?:T(?:[0-9]{1,6}H)?(?:[0-9]{1,6}M)?(?:[0-9]{1,6}S)?)?"
_DECIMAL = r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18})?"

TEXT_TYPES: Mapping[Any, dict[str, Any]] = {
    dt.datetime: {"type": "string", "format": "date-time", "pattern": f"^{_DATE}T{_TIME}$"},
    dt.date: {"type": "string", "format": "date", "pattern": f"^{_DATE}$"},
    dt.time: {"type": "string", "format": "time", "pattern": f"^{_TIME}$"},
    dt.timedelta: {"type": "string", "format": "duration", "pattern": f"^{_DURATION}$"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    decimal.Decimal: {"type": "string", "pattern": f"^{_DECIMAL}$"},
}
"""The schema of each. Times have an offset from UTC, as the formats of JSON Schema ask for."""
