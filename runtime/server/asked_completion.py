"""What a request of /v1/completions asks for, and its answers: whole, or as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palmette.runtime.program import Completion, Delta, Event, Generate, Generated, Node, Text, TokenLogprob, Tokens
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.tokenizer import Piece, Tokenizer

from .logprob_shapes import LegacyLogprobs
from .openai_models import CompletionRequest
from .request_log import TokenCounts
from .responding import json_bytes
from .streaming import DONE, server_sent
from .token_text import text_of
from .usage import FINISH_REASONS, usage


@dataclass(frozen=True, slots=True)
class AskedCompletion:
    """The answers to some prompts. The prompt of place p is node 2p, its generation node 2p + 1."""

    body: CompletionRequest
    params: SamplingParams
    prompts: Sequence[str | Sequence[int]]
    tokenizer: Tokenizer

    @property
    def comes_at_once(self) -> bool:
        """Whether an answer comes whole although it is streamed: what stands first, the prompt's scores, comes last."""
        return self.drops_answer or (bool(self.body.echo) and self.body.logprobs is not None)

    @property
    def drops_answer(self) -> bool:
        """Whether only the prompt is wanted: the one token that is generated is left out."""
        return self.body.max_tokens == 0

    def nodes(self) -> tuple[list[Node], str | None]:
        """The program, and the field that its grammar came in.

        Raises:
            ApiError: the grammar is none, or there are several.
        """
        grammar, param = self.body.grammar()
        streams = bool(self.body.stream) and not self.comes_at_once
        nodes: list[Node] = []
        for place, prompt in enumerate(self.prompts):
            at = 2 * place
            if isinstance(prompt, str):
                nodes.append(Text(at, None, prompt, bool(self.body.parse_special_tokens)))
            else:
                nodes.append(Tokens(at, None, tuple(prompt)))
            nodes.append(Generate(at + 1, at, self.params, grammar, self.body.answers, streams))
        return nodes, param

    def choices(self, ends: Mapping[int, Generated]) -> list[dict[str, Any]]:
        """All answers, in the order of their prompts."""
        return [
            self.choice(node, answer, completion)
            for node in sorted(ends)
            for answer, completion in enumerate(ends[node].completions)
        ]

    def place(self, node: int, answer: int) -> int:
        """Where an answer of a generation stands among all choices."""
        return node // 2 * self.body.answers + answer

    def choice(self, node: int, answer: int, completion: Completion) -> dict[str, Any]:
        """A whole answer."""
        text = "" if self.drops_answer else completion.text
        if self.body.echo:
            text = self.echoed(node) + text
        return {
            "index": self.place(node, answer),
            "text": text,
            "logprobs": self._logprobs(node, completion),
            **ended(completion),
        }

    def echoed(self, node: int) -> str:
        """The prompt of a generation as text."""
        prompt = self.prompts[node // 2]
        return prompt if isinstance(prompt, str) else text_of(self.tokenizer, prompt)

    def _logprobs(self, node: int, completion: Completion) -> dict[str, Any] | None:
        if completion.logprobs is None:
            return None
        entries: list[TokenLogprob | None] = [] if self.drops_answer else list(completion.logprobs)
        if completion.prompt_logprobs is not None:
            entries[:0] = completion.prompt_logprobs
        return LegacyLogprobs(self.tokenizer).shaped(entries, self._first_id(node))

    def _first_id(self, node: int) -> int | None:
        """The first token of a prompt, which nothing precedes and so no log-probability names."""
        prompt = self.prompts[node // 2]
        if isinstance(prompt, str):
            pieces = [Piece(prompt, bool(self.body.parse_special_tokens), 0)]
            prompt = self.tokenizer.encode(pieces, start=True).ids
        return prompt[0] if prompt else self.tokenizer.start_id


def ended(completion: Completion) -> dict[str, Any]:
    """Why an answer ended; `stop_reason` is the stop string or token."""
    return {"finish_reason": FINISH_REASONS[completion.finish_reason], "stop_reason": completion.matched}


@dataclass(slots=True)
class _Open:
    """A choice that is being sent: its new text and log-probabilities, and how many of these there were."""

    logprobs: LegacyLogprobs
    text: list[str] = field(default_factory=list)
    entries: list[TokenLogprob] = field(default_factory=list)
    taken: int = 0


class CompletionStream:
    """Writes answers as they come, one chunk for each choice that has news."""

    def __init__(self, asked: AskedCompletion, counts: TokenCounts, head: Mapping[str, Any]) -> None:
        self._asked = asked
        self._counts = counts
        self._head = head
        self._with_usage = asked.body.wants_usage
        self._unfinished = len(asked.prompts)
        self._open: dict[tuple[int, int], _Open] = {}

    @property
    def done(self) -> bool:
        return self._unfinished == 0

    def write(self, events: Sequence[Event]) -> bytes:
        """The chunks of some events; after the last of all answers the usage, where it is wanted, and the end."""
        chunks: list[bytes] = []
        news: dict[tuple[int, int], _Open] = {}
        for event in events:
            if isinstance(event, Delta):
                key = (event.node, event.index)
                news[key] = self._take(key, event.text, event.logprobs)
            elif isinstance(event, Generated):
                self._unfinished -= 1
                for answer, completion in enumerate(event.completions):
                    news.pop((event.node, answer), None)
                    chunks.append(self._last(event.node, answer, completion))
        chunks[:0] = [self._chunk(key, choice) for key, choice in news.items() if choice.text or choice.entries]
        if self.done:
            chunks += self._closing()
        return b"".join(chunks)

    def _take(self, key: tuple[int, int], text: str, entries: Sequence[TokenLogprob]) -> _Open:
        choice = self._open.get(key)
        if choice is None:
            choice = self._open[key] = _Open(LegacyLogprobs(self._asked.tokenizer))
            if self._asked.body.echo:
                choice.text.append(self._asked.echoed(key[0]))
        if text:
            choice.text.append(text)
        choice.entries += entries
        choice.taken += len(entries)
        return choice

    def _last(self, node: int, answer: int, completion: Completion) -> bytes:
        """The last chunk of a choice: what is left of it, and why it ended."""
        if self._asked.comes_at_once:
            return self._event(self._asked.choice(node, answer, completion))
        key = (node, answer)
        choice = self._take(key, "", ())
        choice.entries += (completion.logprobs or ())[choice.taken :]
        return self._chunk(key, choice, ended(completion))

    def _chunk(self, key: tuple[int, int], choice: _Open, end: Mapping[str, Any] | None = None) -> bytes:
        scored = self._asked.body.logprobs is not None
        value = {
            "index": self._asked.place(*key),
            "text": "".join(choice.text),
            "logprobs": choice.logprobs.shaped(choice.entries) if scored else None,
            "finish_reason": None,
        }
        choice.text, choice.entries = [], []
        return self._event(value if end is None else {**value, **end})

    def _event(self, choice: Mapping[str, Any]) -> bytes:
        usage_so_far = {"usage": None} if self._with_usage else {}
        return server_sent(json_bytes({**self._head, "choices": [choice], **usage_so_far}))

    def _closing(self) -> list[bytes]:
        used = {**self._head, "choices": [], "usage": usage(self._counts)}
        return [server_sent(json_bytes(used)), DONE] if self._with_usage else [DONE]
