"""What went wrong with a service, as the error that a program reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from palmette.constrained.errors import PalmetteError

if TYPE_CHECKING:
    from openai import APIStatusError


class Failure(NamedTuple):
    """The error of a node: the name of its class, what it says, and when the same may go well."""

    kind: str
    message: str
    retry_after_s: float | None = None


class ServiceError(Exception):
    """A service did not answer as it should. `kind` names the class of the error that the program gets."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def failure_of(error: Exception, url: str, timeout_s: float) -> Failure:
    """The failure of a node whose request raised `error`; `url` and `timeout_s` are the service's."""
    import openai

    if isinstance(error, ServiceError):
        return Failure(error.kind, str(error))
    if isinstance(error, PalmetteError):
        return Failure(type(error).__name__, str(error))
    if isinstance(error, openai.APIStatusError):
        return _of_status(error, url)
    if isinstance(error, openai.APITimeoutError):
        return Failure("RequestTimeoutError", f"{url} did not answer within timeout_s={timeout_s:g} seconds")
    if isinstance(error, openai.APIConnectionError):
        return Failure(
            "EngineError", f"{url} cannot be reached: {error.__cause__ or error}; is the service running there?"
        )
    return Failure("EngineError", f"the answer of {url} ended in {type(error).__name__}: {error}")


def is_refusal(error: Exception, *statuses: int) -> bool:
    """Whether the service answered with one of these HTTP statuses."""
    import openai

    return isinstance(error, openai.APIStatusError) and error.status_code in statuses


def is_broken_stream(error: Exception) -> bool:
    """Whether the connection broke after the service had begun to answer: the client does not try that again."""
    import openai

    return isinstance(error, openai.APIConnectionError | ValueError) and not isinstance(error, PalmetteError)


def _of_status(error: APIStatusError, url: str) -> Failure:
    said = _said(error)
    status = error.status_code
    if status in (401, 403):
        return Failure("RequestError", f"{url} refuses the API key: {said}; pass api_key=..., or set OPENAI_API_KEY")
    if status == 404:
        return Failure("RequestError", f"{url} does not know the model or the path: {said}")
    if status in (429, 503):
        return Failure("QueueFullError", f"{url} is too busy, or a limit is used up: {said}", _retry_after(error))
    if status in (408, 504):
        return Failure("RequestTimeoutError", f"{url} gave up: {said}")
    if 400 <= status < 500:
        kind = "GrammarError" if _code(error) == "invalid_grammar" else "RequestError"
        return Failure(kind, f"{url} refuses the request: {said}")
    return Failure("EngineError", f"{url} failed with HTTP status {status}: {said}")


def _said(error: APIStatusError) -> str:
    """The service's own words."""
    body = error.body
    said = body.get("message") if isinstance(body, dict) else None
    return said if isinstance(said, str) and said else error.message


def _code(error: APIStatusError) -> object:
    return error.body.get("code") if isinstance(error.body, dict) else None


def _retry_after(error: APIStatusError) -> float | None:
    try:
        return float(error.response.headers["retry-after"])
    except (KeyError, ValueError):  # none, or a date
        return None
