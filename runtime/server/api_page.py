"""The page of the API at `/docs`: it reads `/openapi.json` and needs nothing from any other site."""

from __future__ import annotations

from fastapi import APIRouter

from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.service import EngineService

from .page_files import add_file

PUBLIC_PATHS = frozenset(("/docs", "/docs/key.js", "/docs/docs.js", "/docs/docs.css"))
"""The page itself, answered without an API key. `/openapi.json` needs one, and the page asks for it."""


def routes(service: EngineService, settings: ServerSettings) -> APIRouter:
    """The page and its files."""
    router = APIRouter()
    add_file(router, "/docs", "docs.html", "text/html")
    add_file(router, "/docs/key.js", "key.js", "text/javascript")
    add_file(router, "/docs/docs.js", "docs.js", "text/javascript")
    add_file(router, "/docs/docs.css", "docs.css", "text/css")
    return router
