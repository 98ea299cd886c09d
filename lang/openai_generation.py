"""Answers one generation or select by requests to an OpenAI service."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from palmette.constrained.grammar import Grammar
from palmette.runtime.choices import decide
from palmette.runtime.errors import RequestError
from palmette.runtime.program import (
    Completion,
    Delta,
    Generate,
    Generated,
    NodeUsage,
    Select,
    Selected,
)
from palmette.runtime.sampling_params import SamplingParams

from .openai_completion import completion_of, shared_counts
from .openai_errors import ServiceError, is_broken_stream, is_refusal
from .openai_grammar import Held, asked, by_extensions, by_schema, mismatch
from .openai_messages import Prompt, prompt_of
from .openai_replies import Answer, Counts, Endpoint, Piece, Reply
from .openai_request import Dialect, chat_fields, sampling_fields, with_other_seed
from .openai_scores import choice_scores, score_prompts
from .openai_service import Service, lacks
from .tree_walk import Step

Show = Callable[[Delta], None]

THINK_TAGS = ("<think>\n", "\n</think>\n\n")
"""Written around reasoning that a service shows apart, as models of that kind write it."""


@dataclass(frozen=True, slots=True)
class AnswerPolicy:
    """How answers are asked for; `OpenAIBackend` says what each is."""

    model: str
    dialect: Dialect
    chat: bool | None
    is_palmette: bool
    structured_outputs: bool
    grammar_attempts: int
    reasoning: Literal["drop", "keep"]
    select_by: Literal["auto", "scores", "asking"]
    extra_body: dict[str, object]


class Answerer:
    """Asks a service. Used on the service's event loop."""

    def __init__(self, service: Service, policy: AnswerPolicy) -> None:
        self._service = service
        self._policy = policy

    @property
    def attempts(self) -> int:
        """How often an answer that is not as it has to be is asked for."""
        return self._policy.grammar_attempts

    def writes_whole_message(self, prompt: Prompt) -> bool:
        """Whether the answer is a message of its own, whatever the program has put into it before."""
        dialect = self._policy.dialect
        continues = dialect.extensions or dialect.prefix != "refuse"
        return prompt.open_role == "assistant" and not continues

    def prompt(self, steps: Sequence[Step]) -> Prompt:
        """The prompt that these nodes make.

        Raises:
            RequestError: they cannot be written as messages.
        """
        if self._policy.chat is False:
            return Prompt(text="".join(step.text for step in steps))
        return prompt_of(steps)

    async def generate(self, node: Generate, prompt: Prompt, show: Show) -> Generated:
        """The answers to a generation; `show` gets deltas of them where the node streams.

        Raises:
            RequestError, GrammarError, ServiceError, openai.OpenAIError: there are none.
        """
        started = time.monotonic()
        if node.n < 1:
            raise RequestError(f"n must be at least 1, not {node.n}")
        completions, counts = await self._ask_anywhere(node, prompt, show)
        computed = sum(each.completion_tokens - each.forced_tokens for each in completions)
        usage = NodeUsage(node.id, computed=computed, forced=counts.forced_tokens)
        return Generated(node.id, tuple(completions), (usage,), time.monotonic() - started)

    async def select(self, node: Select, prompt: Prompt) -> Selected:
        """The choice of a select.

        Raises:
            RequestError, ServiceError, openai.OpenAIError: there is none.
        """
        started = time.monotonic()
        selected = await self._by_scores(node, prompt) if self._may_score(prompt) else None
        if selected is None:
            if self._policy.select_by == "scores":
                raise RequestError(
                    f"{self._service.url} does not give the log-probabilities of a prompt, which select_by='scores' "
                    "needs; select_by='asking' has the model write its choice"
                )
            selected = await self._by_asking(node, prompt)
        return msgspec.structs.replace(selected, elapsed_s=time.monotonic() - started)

    # -- generations ------------------------------------------------------------------------------------------------

    async def _ask_anywhere(self, node: Generate, prompt: Prompt, show: Show) -> tuple[list[Completion], Counts]:
        """Plain text by completions where the service has them, else as one message."""
        abilities = self._service.abilities
        if self._is_chat(prompt):
            return await self._ask_held(node, prompt, "/chat/completions", show)
        try:
            answers = await self._ask_held(node, prompt, "/completions", show)
        except Exception as error:
            if self._policy.chat is False or abilities.completions or not lacks(error):
                raise
            answers = await self._ask_held(node, prompt, "/chat/completions", show)
            abilities.completions = False
            return answers
        abilities.completions = True
        return answers

    def _is_chat(self, prompt: Prompt) -> bool:
        return (
            self._policy.chat is True
            or prompt.has_roles
            or (self._policy.chat is None and self._service.abilities.completions is False)
        )

    async def _ask_held(
        self, node: Generate, prompt: Prompt, endpoint: Endpoint, show: Show
    ) -> tuple[list[Completion], Counts]:
        held = None if node.grammar is None else self._held(node.grammar, endpoint)
        try:
            return await self._ask_until_matched(node, prompt, endpoint, held, show)
        except Exception as error:
            by_format = held is not None and held.fields and not self._policy.dialect.extensions
            if held is None or not by_format or not is_refusal(error, 400, 422, 501):
                raise
            # the service may not know response_format, or not all of JSON Schema; if neither, this fails as well
            return await self._ask_until_matched(node, prompt, endpoint, asked(held.grammar), show)

    def _held(self, grammar: Grammar, endpoint: Endpoint) -> Held:
        if self._policy.dialect.extensions:
            return by_extensions(grammar, endpoint, trusted=self._policy.is_palmette)
        return by_schema(grammar) if self._policy.structured_outputs and endpoint != "/completions" else asked(grammar)

    async def _ask_until_matched(
        self, node: Generate, prompt: Prompt, endpoint: Endpoint, held: Held | None, show: Show
    ) -> tuple[list[Completion], Counts]:
        """As many answers that match as the node wants; those that do not are asked for again."""
        completions: list[Completion] = []
        for attempt in range(1 if held is None or held.trusted else self._policy.grammar_attempts):
            missing = node.n - len(completions)
            body = self._body(with_other_seed(node, attempt), prompt, endpoint, held, missing)
            streams = node.stream and attempt == 0 and self._may_stream(node.params, held)
            tags = THINK_TAGS if self._policy.reasoning == "keep" and held is None else None
            begin = partial(_new_answers, missing, tags)
            answers, counts, shown = await self._request(endpoint, body, begin, node.id, show if streams else None)
            for answer, count in zip(answers, shared_counts(counts, answers), strict=True):
                if node.params.prompt_logprobs is not None:
                    answer.split_echo(prompt.text, count.prompt_tokens)
                text = answer.text if held is None else await asyncio.to_thread(held.read, answer)
                if text is not None and not (shown and text != answer.text):
                    completions.append(
                        completion_of(node, answer, text, count, cuts=not self._policy.dialect.extensions)
                    )
            if len(completions) == node.n:
                return completions, counts
            if shown:
                break
        assert held is not None  # without a grammar every answer is taken
        raise mismatch(held, answers, attempt + 1)

    def _body(self, node: Generate, prompt: Prompt, endpoint: Endpoint, held: Held | None, n: int) -> dict[str, object]:
        policy = self._policy
        if endpoint == "/completions":
            fields: dict[str, object] = {"prompt": prompt.text}
        else:
            fields = chat_fields(prompt, policy.dialect, "" if held is None else held.instruction)
        fields |= sampling_fields(node.params, policy.dialect, endpoint)
        fields |= {} if held is None else held.fields
        return {"model": policy.model, **fields, **({"n": n} if n > 1 else {}), **policy.extra_body}

    def _may_stream(self, params: SamplingParams, held: Held | None) -> bool:
        """Whether text can be shown as it comes: nothing may have to be cut off it, or asked for again."""
        if params.prompt_logprobs is not None or (params.stop_regex and not self._policy.dialect.extensions):
            return False
        return held is None or held.may_stream

    async def _request(
        self,
        endpoint: Endpoint,
        body: dict[str, object],
        begin: Callable[[], list[Answer]],
        node_id: int,
        show: Show | None,
    ) -> tuple[list[Answer], Counts, bool]:
        """The answers, what they used, and whether any of their text was shown."""
        if show is None:
            answers = begin()
            reply = await self._service.ask(endpoint, body)
            self._take(reply, answers)
            return self._whole(answers), reply.counts or Counts(), False
        for attempt in range(self._service.max_retries + 1):
            await self._service.wait_before(attempt)
            answers, counts, shown = begin(), Counts(), False
            try:
                async for reply in self._service.stream(endpoint, body):
                    for piece in self._take(reply, answers):
                        shown = True
                        show(Delta(node_id, piece.text, piece.index, piece.logprobs))
                    counts = reply.counts or counts
                return self._whole(answers), counts, shown
            except Exception as error:
                if shown or attempt == self._service.max_retries or not is_broken_stream(error):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _take(self, reply: Reply, answers: list[Answer]) -> list[Piece]:
        """Add the pieces of a reply to the answers; returns those that hold text to show."""
        shown: list[Piece] = []
        for piece in reply.pieces():
            if not 0 <= piece.index < len(answers):
                raise ServiceError(
                    "EngineError", f"{self._service.url} gave answer {piece.index}; only {len(answers)} were asked for"
                )
            added = answers[piece.index].add(piece)
            if added:
                shown.append(dataclasses.replace(piece, text=added))
        return shown

    def _whole(self, answers: list[Answer]) -> list[Answer]:
        for place, answer in enumerate(answers):
            if answer.refusal:
                raise ServiceError("RequestError", f"the model refused to answer: {answer.refusal}")
            if answer.finish == "content_filter":
                raise ServiceError("RequestError", f"{self._service.url} held the answer back by its content filter")
            if answer.finish is None:
                raise ServiceError("EngineError", f"{self._service.url} broke off answer {place} of {len(answers)}")
        return answers

    # -- selects ----------------------------------------------------------------------------------------------------

    def _may_score(self, prompt: Prompt) -> bool:
        scores = self._service.abilities.scores
        return self._policy.select_by != "asking" and not self._is_chat(prompt) and scores is not False

    async def _by_scores(self, node: Select, prompt: Prompt) -> Selected | None:
        """The choice by its likelihood after the prompt; None where the service does not tell that."""
        body: dict[str, object] = {
            "model": self._policy.model,
            "prompt": score_prompts(prompt.text, node),
            "max_tokens": 0,
            "echo": True,
            "logprobs": 0,
            **self._policy.extra_body,
        }
        try:
            reply = await self._service.ask("/completions", body)
        except Exception as error:
            if not is_refusal(error, 400, 404, 405, 422, 501):
                raise
            self._service.abilities.scores = False
            return None
        scores = choice_scores(reply.scored_tokens(), prompt.text, node)
        self._service.abilities.scores = scores is not None
        if scores is None:
            return None
        counts = reply.counts or Counts()
        choice = decide(node.method, scores)
        return Selected(node.id, choice, scores, counts.prompt_tokens, counts.cached_tokens)

    async def _by_asking(self, node: Select, prompt: Prompt) -> Selected:
        """The choice that the model writes, with the greatest certainty that the service knows."""
        room = max(len(choice.encode()) for choice in node.choices) + 64
        params = SamplingParams(temperature=0, max_tokens=room)
        question = Generate(node.id, node.parent, params, Grammar.choices(node.choices))
        generated = await self.generate(question, prompt, lambda _: None)
        answer = generated.completions[0]
        choice = node.choices.index(answer.text)
        return Selected(node.id, choice, (), answer.prompt_tokens, answer.cached_tokens, generated.usage)


def _new_answers(count: int, tags: tuple[str, str] | None) -> list[Answer]:
    return [Answer(tags) for _ in range(count)]
