"""Several generations from one answer: what a model writes past the end of one is kept for those that follow.

A generation that ends at a stop, and that others follow on the same line, is asked for without its stop. The program's
constant text is then looked for where the model went on; as far as it is found, the generations after it take their
answers from there, and only where the model wrote something else is the service asked again. Text that the model wrote
after the very text of the program is what it would have written if it had been asked with that text, so answers are
drawn as they would have been.

Source: "SGLang: Efficient Execution of Structured Language Model Programs", API speculative execution. Unlike in its
implementation, an answer is used by one branch only, nothing more is asked for where no generation follows, and
max_tokens holds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from palmette.runtime.program import Completion, Generate, Node, Text
from palmette.runtime.sampling_params import SamplingParams

from .mock_stop import before_stop
from .tree_walk import Step


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a model wrote past the end of a generation.

    Attributes:
        text: of it.
        ended: the model ended there by itself.
        params: how it was sampled, but for what ends it.
        tokens_per_byte: of the whole answer; services do not tell where one token ends.
    """

    text: str
    ended: bool
    params: SamplingParams
    tokens_per_byte: float

    def tokens(self, text: str) -> int:
        """About how many tokens of the answer a part of it was."""
        return math.ceil(len(text.encode()) * self.tokens_per_byte - 1e-9)


class Taken(NamedTuple):
    """The answer of one generation, from an answer that holds more: its text, its stop, and what comes after it."""

    text: str
    matched: str | int | None
    ahead: Ahead | None


class Speculation:
    """What was written ahead on the branches of one program.

    Args:
        tokens: how many an answer may have that is to hold several; less than a generation's own max_tokens does not
            count.

    Attributes:
        missed: where `take` last found something else than it needed, what was written, and how the program goes on.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._ahead: dict[int, Ahead] = {}  # by the generation that it was written after
        self.missed: tuple[str, str] | None = None

    def question(self, node: Generate, line: Sequence[Node]) -> Generate | None:
        """What to ask for instead of `node`, so that the answer holds those of its line too; None: ask for it as it is.

        Args:
            line: the nodes that follow it, one after the other.
        """
        follows = any(isinstance(after, Generate) and _may_speculate(after) for after in line)
        if not (follows and _may_speculate(node) and (node.params.stop or node.params.stop_regex)):
            return None
        most = max(node.params.max_tokens, self._tokens)
        params = msgspec.structs.replace(node.params, stop=(), stop_regex=(), max_tokens=most)
        return msgspec.structs.replace(node, params=params, stream=False)

    def keep(self, node: Generate, answer: Completion) -> Completion | None:
        """The node's own answer, cut out of the one to its question, the rest of which is kept for those that follow.

        None: it is not there, as the answer does not end where the node has to.
        """
        ahead = written(node, answer)
        taken = take(node.params, ahead)
        if taken is None:
            # without a longer budget, an answer that was cut off is what the node itself would have got
            return answer if answer.finish_reason == "length" and self._tokens <= node.params.max_tokens else None
        return self._cut(node, taken, answer, ahead)

    def take(self, node: Generate, steps: Sequence[Step]) -> Completion | None:
        """The node's answer from what was written ahead of it, which nobody else gets then; None: it is not there."""
        found = self._before(steps)
        self.missed = None
        if found is None:
            return None
        ahead, text = found
        rest = dataclasses.replace(ahead, text=ahead.text[len(text) :])
        fits = ahead.text.startswith(text) and rest.text and _may_speculate(node)
        taken = take(node.params, rest) if fits and _sampling(node.params) == ahead.params else None
        if taken is None:
            self.missed = (ahead.text, text)
            return None
        return self._cut(node, taken, _NO_REQUEST, rest)

    def _cut(self, node: Generate, taken: Taken, answer: Completion, ahead: Ahead) -> Completion:
        if taken.ahead is not None:
            self._ahead[node.id] = taken.ahead
        return msgspec.structs.replace(
            answer,
            text=taken.text,
            token_ids=(),
            finish_reason="stop",
            matched=answer.matched if taken.ahead is None else taken.matched,
            completion_tokens=ahead.tokens(taken.text),
        )

    def _before(self, steps: Sequence[Step]) -> tuple[Ahead, str] | None:
        """What was written ahead on this branch, and the text that the program has put there since."""
        texts: list[str] = []
        for step in reversed(steps):
            if isinstance(step.node, Generate):
                ahead = self._ahead.pop(step.node.id, None)
                return None if ahead is None else (ahead, "".join(reversed(texts)))
            texts.append(step.text)
        return None


def answers_all(node: Generate, line: Sequence[Node], answer: Completion) -> bool:
    """Whether an answer holds those of all generations of its line."""
    taken = take(node.params, written(node, answer))
    text = ""
    for after in line:
        if isinstance(after, Text):
            text += after.text
        elif taken is None or taken.ahead is None or not taken.ahead.text.startswith(text):
            return False
        elif isinstance(after, Generate):
            rest = dataclasses.replace(taken.ahead, text=taken.ahead.text[len(text) :])
            taken, text = take(after.params, rest) if rest.text else None, ""
    return taken is not None


def written(node: Generate, answer: Completion) -> Ahead:
    """All of an answer, as what was written from the beginning of its node on."""
    length = len(answer.text.encode())
    density = answer.completion_tokens / length if length else 0.0
    return Ahead(answer.text, answer.finish_reason == "stop", _sampling(node.params), density)


def take(params: SamplingParams, ahead: Ahead) -> Taken | None:
    """The answer of a generation from what was written; None where it does not end there, or is too long."""
    text, matched = before_stop(ahead.text, params, lambda _: True)
    cut_off = not ahead.ended and matched is not None and len(text) + len(matched) == len(ahead.text)
    if (matched is None and not ahead.ended) or ahead.tokens(text) > params.max_tokens:
        return None
    if cut_off and params.stop_regex:
        return None  # a pattern may have matched only since the text was cut off there
    if matched is None:
        return Taken(ahead.text, None, None)
    return Taken(text, matched, dataclasses.replace(ahead, text=ahead.text[len(text) :]))


_NO_REQUEST = Completion(
    text="", token_ids=(), finish_reason="stop", prompt_tokens=0, cached_tokens=0, completion_tokens=0
)


def _may_speculate(node: Generate) -> bool:
    """Whether the node's text is all that matters of its answer, and nothing but the text decides where it ends."""
    params = node.params
    unending = params.stop_token_ids or params.min_tokens or params.ignore_eos
    counting = params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1
    plain = node.grammar is None and node.n == 1 and params.logprobs is None and params.prompt_logprobs is None
    return plain and not unending and not counting


def _sampling(params: SamplingParams) -> SamplingParams:
    return msgspec.structs.replace(params, stop=(), stop_regex=(), max_tokens=1)
