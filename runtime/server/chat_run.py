"""The answers of a chat completion, from the events of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palmette.runtime.program import Completion, Delta, Event, Generate, Generated

from .answers import Exchange
from .asked_chat import AskedChat
from .chat_answer import ChatAnswer
from .responding import json_bytes
from .streaming import DONE, server_sent
from .usage import usage


class ChatRun:
    """Takes the events of one request, and extends its program where an answer goes on after a tool marker."""

    def __init__(self, asked: AskedChat, exchange: Exchange) -> None:
        self._asked = asked
        self._exchange = exchange
        self.nodes = asked.nodes()
        tokenizer = asked.tokenizer if asked.body.logprobs else None
        self.answers = [ChatAnswer(index, asked.reader(), tokenizer) for index in range(asked.body.answers)]
        self._unfinished = len(self.answers)
        first = next(node.id for node in self.nodes if isinstance(node, Generate))
        self._first_answer = {first: 0}  # of each generation, the place of its first answer among all
        if asked.stop_id is not None:
            self._first_answer = {first + place: place for place in range(len(self.answers))}
        self._first_node = first
        self._next_id = len(self.nodes)

    @property
    def done(self) -> bool:
        return self._unfinished == 0

    def take(self, events: Sequence[Event]) -> None:
        """Take news of the answers."""
        for event in events:
            if isinstance(event, Delta):
                self.answers[self._first_answer[event.node] + event.index].push(event.text, event.logprobs)
            elif isinstance(event, Generated):
                self._take_end(event)

    def _take_end(self, event: Generated) -> None:
        first = self._first_answer[event.node]
        if event.node != self._first_node:  # its prompt is counted with the first generation
            self._exchange.counts.prompt -= event.completions[0].prompt_tokens
            self._exchange.counts.cached -= event.completions[0].cached_tokens
        for place, completion in enumerate(event.completions):
            answer = self.answers[first + place]
            if not self._goes_on(event.node, answer, completion):
                answer.end(completion)
                self._unfinished -= 1

    def _goes_on(self, node: int, answer: ChatAnswer, completion: Completion) -> bool:
        """Have an answer that stopped at a tool marker go on with its calls, if there is room for any."""
        if completion.matched is None or completion.matched != self._asked.stop_id or answer.calls_begun:
            return False
        left = self._asked.params.max_tokens - answer.output_tokens - completion.completion_tokens
        if left < 1:
            return False
        nodes, plan = self._asked.calls_after(node, self._next_id, left, answer.index)
        answer.go_on(completion, plan)
        self._first_answer[nodes[-1].id] = answer.index
        self._next_id += len(nodes)
        self._exchange.extend(nodes)
        return True


class ChatStream:
    """Writes the answers as they come, in chunks of one choice each."""

    def __init__(self, run: ChatRun, exchange: Exchange, head: Mapping[str, Any], *, with_usage: bool) -> None:
        self._run = run
        self._exchange = exchange
        self._head = head
        self._with_usage = with_usage
        self._ended: set[int] = set()

    @property
    def done(self) -> bool:
        return self._run.done

    def write(self, events: Sequence[Event]) -> bytes:
        """The chunks of some events; after the last of all answers the usage, where it is wanted, and the end."""
        self._run.take(events)
        chunks: list[bytes] = []
        for answer in self._run.answers:
            if answer.index not in self._ended:
                chunks += map(self._chunk, answer.chunks())
                if answer.finish_reason is not None:
                    self._ended.add(answer.index)
        if self.done:
            if self._with_usage:
                used = {**self._head, "choices": [], "usage": usage(self._exchange.counts)}
                chunks.append(server_sent(json_bytes(used)))
            chunks.append(DONE)
        return b"".join(chunks)

    def _chunk(self, choice: Mapping[str, Any]) -> bytes:
        used = {"usage": None} if self._with_usage else {}
        return server_sent(json_bytes({**self._head, "choices": [choice], **used}))
