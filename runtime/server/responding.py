"""Answers as JSON, encoded once and without a response model: what they hold is built by hand."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from starlette.responses import Response

_ENCODER = msgspec.json.Encoder()


def json_bytes(value: Any) -> bytes:
    """`value` as JSON in UTF-8. Halves of surrogate pairs, which a request may hold and an error quote, are escaped."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def json_response(value: Any) -> Response:
    """`value` as an answer of status 200."""
    return Response(json_bytes(value), media_type="application/json")
