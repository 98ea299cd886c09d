"""Answers the generations of one line by as few requests as the model's text allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from palmette.runtime.errors import RequestError
from palmette.runtime.program import Completion, Generate, Generated, NodeUsage, Text

from .openai_generation import Answerer, Show
from .openai_messages import Prompt
from .openai_request import with_other_seed
from .openai_speculation import Speculation, answers_all, written
from .openai_usage import METER
from .tree_walk import Step


class LineAnswerer:
    """As an `Answerer`, for one program that speculates.

    In a message that a service cannot go on with, all generations have to come from one answer: such an answer is asked
    for again, up to the backend's `grammar_attempts`, until it has the program's text between them.

    Args:
        tokens: as of `Speculation`.
    """

    def __init__(self, answerer: Answerer, tokens: int) -> None:
        self._answerer = answerer
        self._speculation = Speculation(tokens)

    async def generate(
        self, node: Generate, steps: Sequence[Step], line: Sequence[Text | Generate], show: Show
    ) -> Generated:
        """The answer to a generation whose prompt is `steps`, and which `line` follows.

        Raises: as `Answerer.generate`.
        """
        taken = self._speculation.take(node, steps)
        if taken is not None:
            METER.get().add(speculated=1)
            return _generated(node, taken, 0.0)
        prompt = self._answerer.prompt(steps)
        question = self._speculation.question(node, line)
        if self._answerer.writes_whole_message(prompt) and (prompt.prefix.strip() or question is not None):
            whole = self._expecting(prompt, steps)
            if whole is not None:
                return await self._from_one_answer(node, question, whole, line)
        elif question is not None:
            generated = await self._answerer.generate(question, prompt, show)
            own = self._speculation.keep(node, generated.completions[0])
            if own is not None:
                return _generated(node, own, generated.elapsed_s)
        return await self._answerer.generate(node, prompt, show)

    async def _from_one_answer(
        self, node: Generate, question: Generate | None, prompt: Prompt, line: Sequence[Text | Generate]
    ) -> Generated:
        """The answer to a generation in a message that has to come whole."""
        asked = msgspec.structs.replace(node, stream=False) if question is None else question
        text = ""
        for attempt in range(self._answerer.attempts):
            generated = await self._answerer.generate(with_other_seed(asked, attempt), prompt, _show_nothing)
            text = generated.completions[0].text
            answers = [without_prefix(node, each, prompt.expected) for each in generated.completions]
            own = None if question is None or answers[0] is None else self._own(node, line, answers[0], attempt)
            if own is not None:
                return _generated(node, own, generated.elapsed_s)
            if question is None and None not in answers:
                completions = tuple(answer for answer in answers if answer is not None)
                return msgspec.structs.replace(generated, completions=completions)
        raise RequestError(
            f"after {self._answerer.attempts} attempt(s) the model's message did not begin with {prompt.expected!r} or "
            f"did not go on as the program does; the last was {text[-200:]!r}. Show the model in the prompt what its "
            "message is to look like, or raise num_api_spec_tokens"
        )

    def _own(
        self, node: Generate, line: Sequence[Text | Generate], answer: Completion, attempt: int
    ) -> Completion | None:
        """The node's own part of an answer that serves its line, or of the last one that there will be."""
        if attempt + 1 < self._answerer.attempts and not answers_all(node, line, answer):
            return None
        return self._speculation.keep(node, answer)

    def _expecting(self, prompt: Prompt, steps: Sequence[Step]) -> Prompt | None:
        """The prompt of a message that the model is to begin by itself; None where a part of it was generated before.

        Raises:
            RequestError: that part came from an answer which was to hold this one too, and does not.
        """
        for step in reversed(steps):
            if isinstance(step.node, Text) and step.node.template:
                break
            if not isinstance(step.node, Text) and step.text:
                if self._speculation.missed is not None:
                    raise RequestError(_missed(*self._speculation.missed))
                return None
        return dataclasses.replace(prompt, prefix="", expected=prompt.prefix)


def without_prefix(node: Generate, answer: Completion, expected: str) -> Completion | None:
    """What follows the beginning that was expected of an answer; None where it begins otherwise."""
    for text, beginning in ((answer.text, expected), (answer.text.lstrip(), expected.lstrip())):
        if text.startswith(beginning):
            rest = text[len(beginning) :]
            tokens = written(node, answer).tokens(rest)
            return answer if not beginning else msgspec.structs.replace(answer, text=rest, completion_tokens=tokens)
    return None


def _missed(wrote: str, wanted: str) -> str:
    return (
        f"one answer was to hold all of this message, as the service cannot go on with a message: the program goes on "
        f"with {wanted[:200]!r}, and the model wrote {wrote[:200]!r} there. Show the model in the prompt what its "
        "message is to look like, raise num_api_spec_tokens, or see OpenAIBackend(prefix=...)"
    )


def _generated(node: Generate, completion: Completion, elapsed_s: float) -> Generated:
    usage = NodeUsage(node.id, computed=completion.completion_tokens)
    return Generated(node.id, (completion,), (usage,), elapsed_s)


def _show_nothing(_: object) -> None:
    """Of an answer that may have to be asked for again, nothing is shown."""
