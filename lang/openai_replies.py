"""What an OpenAI service answers, whole or in pieces, from chat completions and from completions alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec

from palmette.runtime.program import TokenLogprob, TopLogprob

from .openai_errors import ServiceError

UNKNOWN_TOKEN = -1
"""Stands for the id of a token of which the service tells only the text."""

Endpoint = Literal["/chat/completions", "/completions"]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Piece:
    """More of answer `index`."""

    index: int
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    finish: str | None = None
    matched: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of one request, as the service counts them."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0


@dataclass(slots=True)
class Answer:
    """One of the answers to a request, as far as it has come. `tags` are written around the reasoning in `text`."""

    tags: tuple[str, str] | None = None
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    finish: str | None = None
    matched: str | int | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    begun: bool = False

    def add(self, piece: Piece) -> str:
        """Take more of it; returns what that adds to the text."""
        added = piece.text
        if self.tags is not None and piece.reasoning:
            added = f"{'' if self.reasoning else self.tags[0]}{piece.reasoning}{added}"
        if self.tags is not None and piece.text and not self.begun and (self.reasoning or piece.reasoning):
            added = f"{added.removesuffix(piece.text)}{self.tags[1]}{piece.text}"
        self.begun = self.begun or bool(piece.text)
        self.text += added
        self.reasoning += piece.reasoning
        self.refusal += piece.refusal
        self.finish = piece.finish or self.finish
        self.matched = self.matched if piece.matched is None else piece.matched
        self.logprobs += piece.logprobs
        return added

    def split_echo(self, prompt: str, tokens: int) -> None:
        """Take apart an answer that begins with its prompt, which has so many tokens."""
        self.text = self.text.removeprefix(prompt)
        self.prompt_logprobs, self.logprobs = self.logprobs[:tokens], self.logprobs[tokens:]


class _TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    token_id: int = UNKNOWN_TOKEN


class _ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    token_id: int = UNKNOWN_TOKEN
    top_logprobs: list[_TopLogprob] | None = None


class _Logprobs(msgspec.Struct):
    """Of chat completions (`content`), or of completions (the rest)."""

    content: list[_ChatLogprob] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None
    token_ids: list[int] | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    """Of a whole answer (`message`), of a piece (`delta`), or of completions (`text`)."""

    index: int = 0
    message: _Message | None = None
    delta: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # an extension of many servers: the stop string or token
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    forced_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    cached_tokens: int | None = None
    forced_tokens: int | None = None


class Reply(msgspec.Struct):
    """A whole answer, or one event of a streamed one."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None

    def pieces(self) -> Iterator[Piece]:
        """What it brings for each of the answers."""
        for choice in self.choices or ():
            said = choice.message or choice.delta or _Message(content=choice.text)
            yield Piece(
                choice.index,
                said.content or "",
                said.reasoning_content or "",
                said.refusal or "",
                choice.finish_reason,
                choice.stop_reason,
                tuple(_token_logprobs(choice.logprobs)),
            )

    def scored_tokens(self) -> list[tuple[list[str], list[float | None]]]:
        """The tokens of each answer of completions, and their log-probabilities; empty where there are none."""
        choices = sorted(self.choices or (), key=lambda choice: choice.index)
        found = [choice.logprobs or _Logprobs() for choice in choices]
        return [(each.tokens or [], each.token_logprobs or []) for each in found]

    @property
    def counts(self) -> Counts | None:
        usage = self.usage
        if usage is None:
            return None
        prompt, completion = usage.prompt_tokens_details or _Details(), usage.completion_tokens_details or _Details()
        return Counts(
            usage.prompt_tokens,
            prompt.cached_tokens or usage.cached_tokens or 0,
            usage.completion_tokens or 0,
            completion.forced_tokens or usage.forced_tokens or 0,
        )


def reply_of(value: object, url: str) -> Reply:
    """An answer read from JSON values.

    Raises:
        ServiceError: it has another shape.
    """
    try:
        return msgspec.convert(value, Reply)
    except msgspec.ValidationError as error:
        raise ServiceError(
            "EngineError", f"{url} answered in a form that is not OpenAI's: {error}; is base_url right?"
        ) from error


def _token_logprobs(logprobs: _Logprobs | None) -> Iterator[TokenLogprob]:
    if logprobs is None:
        return
    for entry in logprobs.content or ():
        top = tuple(TopLogprob(each.token_id, each.logprob, each.token) for each in entry.top_logprobs or ())
        yield TokenLogprob(entry.token_id, entry.logprob, top, entry.token)
    for place, token in enumerate(logprobs.tokens or ()):
        value = _at(logprobs.token_logprobs, place)
        likeliest = _at(logprobs.top_logprobs, place) or {}
        top = tuple(TopLogprob(UNKNOWN_TOKEN, each, text) for text, each in likeliest.items())
        token_id = _at(logprobs.token_ids, place)
        yield TokenLogprob(UNKNOWN_TOKEN if token_id is None else token_id, 0.0 if value is None else value, top, token)


def _at(values: list[Value] | None, place: int) -> Value | None:
    return values[place] if values is not None and place < len(values) else None
