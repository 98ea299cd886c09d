"""Clients of the one server around the tiny engine."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest
from tests.native_server import ServedEngine


@pytest.fixture
def http(tiny_server: ServedEngine) -> Iterator[httpx.Client]:
    """A plain client."""
    with httpx.Client(base_url=tiny_server.url, timeout=60) as client:
        yield client


@pytest.fixture
def openai_client(tiny_server: ServedEngine) -> Iterator[openai.OpenAI]:
    """OpenAI's client, which does not try again."""
    with openai.OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client
