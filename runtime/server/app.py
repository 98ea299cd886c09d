"""The app: all routes, behind what stands before every request."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from palmette.runtime.measured_service import MeasuredService
from palmette.runtime.metrics import Metrics
from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.service import EngineService

from . import api_page, chat, completions, models, native, operations, page, programs, responses, tokenize
from .answers import OpenExchanges
from .errors import install_error_handlers
from .http_metrics import HttpMetrics
from .openapi_page import complete_page
from .security import install_security

_TAGS = [
    {"name": "OpenAI", "description": "As OpenAI's clients speak, with extensions."},
    {"name": "models", "description": "What is served."},
    {"name": "tokens", "description": "Text to token ids and back, as the engine does it."},
    {"name": "native", "description": "Palmette's own form of a generation."},
    {"name": "programs", "description": "Programs of many calls, whose shared prefixes are computed once."},
    {"name": "operations", "description": "How the server is watched and operated."},
]
_ABOUT = (
    "OpenAI's protocol, and Palmette's own for programs of calls. Every answer has an `x-request-id`: the client's own,"
    " where it sent one."
)


class _App(FastAPI):
    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(
            title="Palmette",
            description=_ABOUT,
            version=version("palmette"),
            openapi_tags=_TAGS,
            separate_input_output_schemas=False,
            docs_url=None,  # api_page.py has a page of its own, which needs nothing of other sites
            redoc_url=None,
        )
        self._settings = settings

    def openapi(self) -> dict[str, Any]:
        first = self.openapi_schema is None
        described = super().openapi()
        if first:
            complete_page(described, self._settings)
        return described


def create_app(service: EngineService, settings: ServerSettings) -> FastAPI:
    """The server's app on a service; it is run on the loop that the service belongs to.

    ``app.state`` holds `exchanges` (`OpenExchanges`), `programs` (`ProgramStore`) and `metrics` (`Metrics`): whoever
    ends the server ends with them what is open.
    """
    app = _App(settings)
    app.state.exchanges = OpenExchanges()
    app.state.metrics = Metrics()
    service = MeasuredService(service, app.state.metrics)
    program_router = programs.routes(service, settings)
    app.state.programs = program_router.store
    modules = (chat, completions, responses, native, models, tokenize, operations, page, api_page)
    for router in (*(module.routes(service, settings) for module in modules), program_router):
        app.router.routes.extend(router.routes)  # one flat list: included routers are searched one by one
    install_error_handlers(app)
    install_security(app, settings)
    app.add_middleware(HttpMetrics, metrics=app.state.metrics)  # outermost: what the layers refuse is counted too
    return app
