"""Files of web pages, with the headers that keep everything else away from them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def add_file(router: APIRouter, path: str, name: str, kind: str) -> None:
    """Answer `path` with a file of the folder static/, which is read once."""

    @router.get(path, include_in_schema=False)
    async def file() -> Response:
        return Response(_content(name), media_type=f"{kind}; charset=utf-8", headers=_HEADERS)


@cache
def _content(name: str) -> bytes:
    return files(__package__).joinpath("static", name).read_bytes()
