"""The requests of `benchmarks/serving.py`: plain token ids, drawn so that every engine that is compared does the same.

A workload is a list of rounds. The requests of a round are submitted at once, and the next round begins when the last
of them has ended. Prompts come from numpy's `default_rng` with a fixed seed a workload, in the order in which the
figures of the other engines were drawn (`shared/bench/workloads.py`): with full sizes the ids are equal to theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from palmette.runtime.batch import Int32Array

Scale = Literal["full", "tiny"]

LOWEST_ID, ID_LIMIT = 1000, 30000
"""Ids that every vocabulary which is compared has: none of them is special."""


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        prompt: [N] int32 token ids; for a turn of a session, what it adds to the session's history.
        new_tokens: exactly so many are generated; with a grammar, at most.
        session: whose history its prompt follows and its answer extends; None stands alone.
    """

    prompt: Int32Array
    new_tokens: int
    session: int | None = None


@dataclass(frozen=True)
class Workload:
    """Rounds of requests.

    Attributes:
        goal_s: issue 6's, in seconds, for full sizes on one H200.
        is_json: answers are held to the schema and sampled at temperature 1; else they are greedy.
    """

    name: str
    rounds: tuple[tuple[Ask, ...], ...]
    goal_s: float
    is_json: bool = False

    @property
    def requests(self) -> int:
        return sum(len(asks) for asks in self.rounds)

    @property
    def new_tokens(self) -> int:
        """Tokens that are generated; at most, with a grammar."""
        return sum(ask.new_tokens for asks in self.rounds for ask in asks)


class _Ids:
    """Token ids from one seed, in order."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def draw(self, count: int) -> Int32Array:
        drawn: Int32Array = self.random.integers(LOWEST_ID, ID_LIMIT, size=count).astype(np.int32)
        return drawn


def unique(scale: Scale) -> Workload:
    """Nothing is shared: 512 prompts of 1024 tokens, 256 new ones each."""
    requests, prompt, new = (512, 1024, 256) if scale == "full" else (6, 40, 5)
    ids = _Ids(0)
    return Workload("unique", (tuple(Ask(ids.draw(prompt), new) for _ in range(requests)),), 20.9)


def fork(scale: Scale) -> Workload:
    """64 prefixes of 2048 tokens with 16 branches each: 64 tokens of their own, 64 new ones; in mixed order."""
    groups, branches, prefix, own, new = (64, 16, 2048, 64, 64) if scale == "full" else (3, 4, 64, 8, 5)
    ids = _Ids(1)
    asks: list[Ask] = []
    for _ in range(groups):
        head = ids.draw(prefix)
        asks += [Ask(np.concatenate((head, ids.draw(own))), new) for _ in range(branches)]
    order = list(range(len(asks)))
    ids.random.shuffle(order)
    return Workload("fork", (tuple(asks[index] for index in order),), 10.3)


def fewshot(scale: Scale) -> Workload:
    """One header of 1536 tokens before 2048 questions of 96, answered by one token each."""
    questions, header, question = (2048, 1536, 96) if scale == "full" else (12, 64, 9)
    ids = _Ids(2)
    head = ids.draw(header)
    asks = tuple(Ask(np.concatenate((head, ids.draw(question))), 1) for _ in range(questions))
    return Workload("fewshot", (asks,), 5.6)


def agents(scale: Scale) -> Workload:
    """128 sessions of 4 turns under one system prompt of 1024 tokens: each turn brings 256 tokens and takes 128."""
    sessions, turns, system, user, new = (128, 4, 1024, 256, 128) if scale == "full" else (4, 3, 48, 10, 6)
    ids = _Ids(3)
    head = ids.draw(system)
    rounds = []
    for turn in range(turns):
        before = head if turn == 0 else head[:0]
        rounds.append(tuple(Ask(np.concatenate((before, ids.draw(user))), new, each) for each in range(sessions)))
    return Workload("agents", tuple(rounds), 9.8)


def single(batch: int, goal_s: float, scale: Scale) -> Workload:
    """A few requests at once, for latency: prompts of 512 tokens, 256 new ones each."""
    prompt, new = (512, 256) if scale == "full" else (20, 6)
    ids = _Ids(4 + batch)
    requests = batch if scale == "full" else min(batch, 4)
    return Workload(f"single{batch}", (tuple(Ask(ids.draw(prompt), new) for _ in range(requests)),), goal_s)


def json_answers(scale: Scale) -> Workload:
    """256 prompts of 256 tokens, each answered by JSON of a schema in at most 256 tokens."""
    requests, prompt, new = (256, 256, 256) if scale == "full" else (2, 12, 200)
    ids = _Ids(9)
    return Workload("json", (tuple(Ask(ids.draw(prompt), new) for _ in range(requests)),), 4.6, is_json=True)


WORKLOADS: dict[str, Callable[[Scale], Workload]] = {
    "unique": unique,
    "fork": fork,
    "fewshot": fewshot,
    "agents": agents,
    "single1": lambda scale: single(1, 0.00488 * 256, scale),
    "single8": lambda scale: single(8, 1.41, scale),
    "single64": lambda scale: single(64, 2.49, scale),
    "json": json_answers,
}
