"""/v1/models: what is served."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.service import EngineService

from .responding import json_response
from .served_model import ServedModel


def routes(service: EngineService, settings: ServerSettings) -> APIRouter:
    """The routes of this module."""
    router = APIRouter(tags=["models"])
    model = ServedModel.of(service.model_info, settings)

    @router.get("/v1/models", summary="List the models")
    async def list_models() -> Response:
        """The one model that this server has."""
        return json_response({"object": "list", "data": [_card(model)]})

    @router.get("/v1/models/{name:path}", summary="Describe a model")
    async def get_model(name: str) -> Response:
        """A model by its served name, or by another name that requests may use."""
        model.check(name)
        return json_response(_card(model))

    return router


def _card(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.started_s,
        "owned_by": "palmette",
        "root": model.info.name,
        "parent": None,
        "max_model_len": model.info.context_length,
    }
