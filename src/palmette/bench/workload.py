"""Workloads for a server: what is asked, of which lengths, and what the prompts share.

A workload is a list of jobs. The turns of a job are asked one after the other, each with what was said before it;
jobs come as the arrival process says. Prompts are random, so that what is not meant to be shared is not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Literal

WorkloadName = Literal["unique", "fork", "fewshot", "agents", "json"]
Prompt = tuple[int, ...] | str


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: what it adds to the prompt of its job, and how many tokens are wanted."""

    adds: Prompt
    output_tokens: int
    json_schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """Turns that are asked one after the other. The answer of a turn is part of the next one's prompt."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sizes of a workload, in tokens (in words where prompts are text, which are about as many tokens).

    Attributes:
        shared: of what prompts have in common.
        own: of what each adds.
        output: of each answer.
        group: jobs that share a prefix; 0 is all of them.
        turns: of each job.
    """

    shared: int
    own: int
    output: int
    group: int = 0
    turns: int = 1


LENGTHS: dict[WorkloadName, Lengths] = {
    "unique": Lengths(shared=0, own=1024, output=256),
    "fork": Lengths(shared=2048, own=64, output=64, group=16),
    "fewshot": Lengths(shared=1536, own=96, output=1),
    "agents": Lengths(shared=1024, own=256, output=128, turns=4),
    "json": Lengths(shared=0, own=256, output=256),
}
"""unique: nothing is shared. fork: groups of branches share a long prefix. fewshot: one long header, a short question,
one token of answer. agents: conversations that share a system prompt and grow. json: answers under a schema."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "role": {"enum": ["engineer", "writer", "doctor", "teacher"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
        "active": {"type": "boolean"},
    },
    "required": ["name", "age", "role", "tags", "active"],
    "additionalProperties": False,
}

_WORD_LIST = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house"
)
_WORDS = tuple(f" {word}" for word in _WORD_LIST.split(" "))


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Draws random prompts.

    Attributes:
        ids: the range of token ids to draw from; None draws words of text.
    """

    ids: range | None
    random: random.Random = field(default_factory=random.Random)

    def draw(self, length: int) -> Prompt:
        """A prompt of about so many tokens."""
        if self.ids is None:
            return "".join(self.random.choices(_WORDS, k=length))
        return tuple(self.random.choices(self.ids, k=length))


def token_ids_of(vocab_size: int) -> range:
    """Ids of ordinary tokens: special tokens stand at the beginning of most vocabularies, or at their end."""
    return range(min(1000, vocab_size // 2), max(vocab_size // 2 + 1, min(30_000, vocab_size * 9 // 10)))


def jobs_of(name: WorkloadName, lengths: Lengths, requests: int, maker: PromptMaker) -> list[Job]:
    """Jobs of a workload, for so many requests in all; of groups and of turns the last may be incomplete."""
    schema = SCHEMA if name == "json" else None
    jobs: list[Job] = []
    shared: Prompt = ()
    left = requests
    while left > 0:
        if not jobs or (lengths.group and len(jobs) % lengths.group == 0):
            shared = maker.draw(lengths.shared)
        count = min(lengths.turns, left)
        turns = [Turn(maker.draw(lengths.own), lengths.output, schema) for _ in range(count)]
        turns[0] = Turn(joined(shared, turns[0].adds), lengths.output, schema)
        jobs.append(Job(tuple(turns)))
        left -= count
    if lengths.group:
        maker.random.shuffle(jobs)
    return jobs


def joined(*parts: Prompt) -> Prompt:
    """Prompts put together; they are all ids, or all text."""
    texts = [part for part in parts if isinstance(part, str)]
    if texts:
        return "".join(texts)
    return tuple(token for part in parts if not isinstance(part, str) for token in part)
