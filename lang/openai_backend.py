"""Runs programs on a service that speaks OpenAI's protocol: OpenAI's own, a Palmette server, or anyone's."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, get_args

from palmette.runtime.program import ModelInfo

from .backend import EventSink
from .openai_generation import Answerer, AnswerPolicy
from .openai_loop import LoopThread
from .openai_messages import MARKS
from .openai_request import Dialect, PrefixPolicy
from .openai_service import Service, new_client, token_limit_name
from .openai_session import OpenAISession
from .openai_usage import OpenAIUsage, Prices, UsageMeter, checked_prices
from .state import ProgramState

__all__ = ["OpenAIBackend", "OpenAIUsage"]

_PROBE_S = 30.0
_UNKNOWN_LENGTH = 1 << 20
_UNKNOWN_VOCABULARY = 1 << 20


@dataclass(frozen=True, slots=True)
class _Server:
    """What the service was found to be."""

    info: ModelInfo
    answerer: Answerer


class OpenAIBackend:
    """A language backend on an OpenAI service, over the official `openai` client (``pip install 'palmette[openai]'``).

    One request a generation; a program of ``@pt.function(num_api_spec_tokens=...)`` may need fewer. Where the program
    used roles, the request is a chat completion of its messages; plain text is a completion where the service has
    them, else one user message. A context manager; closing it ends what still runs.

    Constraints: a Palmette server holds answers to any grammar. Another service is held to a JSON schema, and to
    choices and patterns that a schema can say, by `response_format`; to any other grammar the model is only told of
    it. Whatever the service promises, each answer is checked, asked for again where it does not match, and after
    `grammar_attempts` the generation fails with a GrammarError: no program reads an answer that breaks its grammar.
    Checked answers come in one piece where they may have to be asked for again.

    `select` scores its choices by their log-probabilities where the service tells those of a prompt (completions with
    `echo`), else the model is asked to write one of them, held to them as above; `Selected.scores` is then empty.

    Text that is generated in an assistant message after text of the program's ("The answer is " + gen) needs a service
    that goes on with a message. Palmette servers do (`continue_final_message`). OpenAI's own begins a new message
    instead, so such a generation is refused unless `prefix` says what to do.

    An option that has Palmette's default is not sent to a service that is not Palmette's: the service's own default
    holds. One that the service has no field for is refused.

    Args:
        model: the service's name for the model.
        base_url: of the service, with its ``/v1``; None is OpenAI's, or OPENAI_BASE_URL.
        api_key: None is OPENAI_API_KEY, which a service other than OpenAI's need not have.
        max_retries: tries again after a lost connection, 408, 409, 429 and 5xx, with growing waits and as Retry-After
            says.
        timeout_s: of a request, or between two pieces of a streamed answer.
        chat: True sends plain text as a user message always; False sends everything as completions, roles as plain
            ``ROLE: text`` lines; None does as said above.
        extensions: whether the service takes Palmette's own fields (`regex`, `ebnf`, `top_k`, ...); None asks it once,
            by ``/server_info``.
        structured_outputs: whether `response_format` with a JSON schema may be used.
        prefix: of an assistant message that is to be continued: "refuse"; "send" it as the last message, for services
            that go on with it; "ask" the model to go on with it, which it may do badly.
        grammar_attempts: how often an answer is asked for until it matches its grammar.
        reasoning: of answers without a grammar whose reasoning the service shows apart: "drop" it, or "keep" it in
            front of the answer between ``<think>`` tags, where ``separate_reasoning=True`` finds it. Answers with a
            grammar keep it where the program separates it.
        select_by: "auto" as said above, "scores" or "asking".
        max_open_requests: most requests at once; others wait here.
        context_length: tells programs how much the model takes; nothing is checked here.
        extra_body: further fields of every request.
        prices: of a million tokens, such as ``{"prompt": 2.0, "completion": 8.0, "cached": 0.5}``, for `cost` and
            `cost_of`; without "cached", cached prompt tokens cost what others do.

    Raises:
        EngineError: the client is not installed.
        ValueError: an argument is out of its range, or OpenAI's service is to be used without an API key.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        max_retries: int = 4,
        timeout_s: float = 600.0,
        chat: bool | None = None,
        extensions: bool | None = None,
        structured_outputs: bool = True,
        prefix: PrefixPolicy = "refuse",
        grammar_attempts: int = 3,
        reasoning: Literal["drop", "keep"] = "drop",
        select_by: Literal["auto", "scores", "asking"] = "auto",
        max_open_requests: int = 64,
        context_length: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        prices: Mapping[str, float] | None = None,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise ValueError(f"model must be the service's name for the model, not {model!r}")
        _check_one_of("prefix", prefix, get_args(PrefixPolicy))
        _check_one_of("reasoning", reasoning, ("drop", "keep"))
        _check_one_of("select_by", select_by, ("auto", "scores", "asking"))
        _check_at_least("max_retries", max_retries, 0)
        _check_at_least("grammar_attempts", grammar_attempts, 1)
        _check_at_least("max_open_requests", max_open_requests, 1)
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be more than 0 seconds, not {timeout_s!r}")
        self._model = model
        self._context_length = context_length
        self._extensions = extensions
        self._prices = None if prices is None else checked_prices(prices)
        self._meter = UsageMeter()
        self._metering = threading.Lock()
        self._by_program: dict[str, UsageMeter] = {}
        self._loop = LoopThread()
        client = new_client(base_url, api_key, max_retries, timeout_s)
        self._service = Service(client, timeout_s=timeout_s, max_open_requests=max_open_requests)
        self._policy = AnswerPolicy(
            model=model,
            dialect=Dialect(extensions is True, token_limit_name(self._service.url), prefix),
            chat=chat,
            is_palmette=False,
            structured_outputs=structured_outputs,
            grammar_attempts=grammar_attempts,
            reasoning=reasoning,
            select_by=select_by,
            extra_body=dict(extra_body or {}),
        )
        self._finding_out = threading.Lock()
        self._server: _Server | None = None

    @property
    def model_info(self) -> ModelInfo:
        """What programs must know of the model. The first look may ask the service what it is."""
        return self._found().info

    @property
    def usage(self) -> OpenAIUsage:
        """Of all programs so far."""
        return self._meter.total

    @property
    def usage_by_program(self) -> dict[str, OpenAIUsage]:
        """Of all runs so far of each program, by the names of their functions."""
        with self._metering:
            return {name: meter.total for name, meter in self._by_program.items()}

    def usage_of(self, state: ProgramState) -> OpenAIUsage:
        """Of one run so far, or of one item of a batch.

        Raises:
            ValueError: it ran on another backend, or has not begun.
        """
        meter = state._execution.meter
        if not isinstance(meter, UsageMeter) or not meter.is_part_of(self._meter):
            raise ValueError(f"{state!r} did not run on this backend, or has not begun")
        return meter.total

    @property
    def cost(self) -> float:
        """What all programs have cost so far, in the currency of the prices.

        Raises:
            ValueError: the backend was given no prices.
        """
        return self._checked_prices().of(self.usage)

    def cost_of(self, state: ProgramState) -> float:
        """What one run has cost so far.

        Raises:
            ValueError: the backend was given no prices, or the run was not on it.
        """
        return self._checked_prices().of(self.usage_of(state))

    def open(self, events: EventSink, *, program: str | None = None) -> OpenAISession:
        """Open an empty tree; its events come from the backend's own thread."""
        meter = UsageMeter(self._meter_of(program))
        return OpenAISession(self._loop, self._service, self._found().answerer, events, meter)

    def close(self) -> None:
        """End what still runs, and the connections. Calling it twice is allowed."""
        self._loop.close(self._service.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"OpenAIBackend({self._model!r}, base_url={self._service.url!r})"

    def _checked_prices(self) -> Prices:
        if self._prices is None:
            raise ValueError(
                "the backend was given no prices: OpenAIBackend(..., prices={'prompt': ..., 'completion': ...}), of a "
                "million tokens each"
            )
        return self._prices

    def _meter_of(self, program: str | None) -> UsageMeter:
        with self._metering:
            name = program or ""
            if name not in self._by_program:
                self._by_program[name] = UsageMeter(self._meter)
            return self._by_program[name]

    def _found(self) -> _Server:
        """What the service is: asked once, by whoever comes first."""
        with self._finding_out:
            if self._server is None:
                self._server = self._find_out()
            return self._server

    def _find_out(self) -> _Server:
        dialect = self._policy.dialect
        told: ModelInfo | None = None
        if self._extensions is not False and dialect.token_limit == "max_tokens":
            told = self._loop.wait_for(self._service.palmette_info(), _PROBE_S)
        if self._extensions is None:
            dialect = dataclasses.replace(dialect, extensions=told is not None)
        policy = dataclasses.replace(self._policy, dialect=dialect, is_palmette=told is not None)
        return _Server(self._info(told), Answerer(self._service, policy))

    def _info(self, told: ModelInfo | None) -> ModelInfo:
        known = told.context_length if told is not None else _UNKNOWN_LENGTH
        return ModelInfo(
            name=self._model,
            context_length=self._context_length or known,
            vocab_size=told.vocab_size if told is not None else _UNKNOWN_VOCABULARY,
            chat_template=None if self._policy.chat is False else MARKS,
            sampling_defaults=told.sampling_defaults if told is not None else {},
        )


def _check_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def _check_at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
