"""The body of a request to an OpenAI service, from a prompt and sampling options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from palmette.runtime.errors import RequestError
from palmette.runtime.program import Generate
from palmette.runtime.sampling_params import SamplingParams

from .openai_messages import Message, Prompt
from .openai_replies import Endpoint

PrefixPolicy = Literal["refuse", "send", "ask"]

_OPENAI = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")
_EXTENSIONS = ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_regex", "stop_token_ids")
_MODEL_SETS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_DONE_HERE = (
    "max_tokens",
    "stop",
    "logit_bias",
    "logprobs",
    "prompt_logprobs",
    "prompt_logprobs_from",
    "return_text_in_logprobs",
    "stop_regex",
    "always_complete",
)
_CONTINUE = (
    "Go on with your last message from exactly where it stops. Write only what comes next, and repeat nothing of it."
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a service takes.

    Attributes:
        extensions: it is Palmette, and takes Palmette's own fields.
        token_limit: its name for max_tokens in chat completions.
        prefix: what is done with a message that is to be continued, where the service has no field for that.
    """

    extensions: bool
    token_limit: Literal["max_tokens", "max_completion_tokens"]
    prefix: PrefixPolicy


def chat_fields(prompt: Prompt, dialect: Dialect, instruction: str = "") -> dict[str, object]:
    """The fields of a chat completion that hold the prompt.

    Raises:
        RequestError: a message is to be continued, and the service cannot.
    """
    messages = list(prompt.messages) if prompt.has_roles else [Message("user", prompt.text)]
    continues = prompt.open_role is not None and (prompt.open_role != "assistant" or bool(prompt.prefix.strip()))
    if instruction:
        messages = _instructed(messages, instruction)
    fields: dict[str, object] = {}
    if continues and prompt.open_role is not None:
        messages.append(Message(prompt.open_role, prompt.prefix))
        if prompt.open_role != "assistant" and dialect.prefix != "send":
            raise RequestError(_cannot_continue(prompt))
        if dialect.extensions:
            fields = {"continue_final_message": True, "add_generation_prompt": False}
        elif dialect.prefix == "refuse":
            raise RequestError(_cannot_continue(prompt))
        elif dialect.prefix == "ask":
            messages.append(Message("user", _CONTINUE))
    return {"messages": [{"role": each.role, "content": each.content} for each in messages], **fields}


def with_other_seed(node: Generate, attempt: int) -> Generate:
    """The node as it is asked for once more: with the same seed the same answer would come."""
    if not attempt or node.params.seed is None:
        return node
    params = msgspec.structs.replace(node.params, seed=(node.params.seed + attempt) % (1 << 63))
    return msgspec.structs.replace(node, params=params)


def sampling_fields(params: SamplingParams, dialect: Dialect, endpoint: Endpoint) -> dict[str, object]:
    """The fields for sampling options. What is at its default is left to the service, but for what a model sets.

    Raises:
        RequestError: the service has no field for an option.
    """
    defaults = SamplingParams()
    changed = {
        name: value
        for name, value in msgspec.structs.asdict(params).items()
        if value != getattr(defaults, name) or (dialect.extensions and name in _MODEL_SETS)
    }
    known = (*_OPENAI, *_DONE_HERE, *(_EXTENSIONS if dialect.extensions else ()))
    unknown = [f"{name}={value!r}" for name, value in changed.items() if name not in known]
    if unknown:
        raise RequestError(
            f"{', '.join(unknown)}: the service has no such option; leave it out, or pass extensions=True if it takes "
            "Palmette's own fields"
        )
    plain = (*_OPENAI, *(_EXTENSIONS if dialect.extensions else ()))
    fields: dict[str, object] = {name: value for name, value in changed.items() if name in plain}
    fields["max_tokens" if endpoint == "/completions" else dialect.token_limit] = params.max_tokens
    if params.stop:
        fields["stop"] = list(params.stop)
    if params.logit_bias:
        fields["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias.items()}
    return fields | _logprob_fields(params, endpoint)


def _logprob_fields(params: SamplingParams, endpoint: Endpoint) -> dict[str, object]:
    if params.prompt_logprobs is not None:
        if endpoint != "/completions":
            raise RequestError("prompt_logprobs: chat completions tell the log-probabilities of their answers only")
        return {"echo": True, "logprobs": max(params.prompt_logprobs, params.logprobs or 0)}
    if params.logprobs is None:
        return {}
    if endpoint == "/completions":
        return {"logprobs": params.logprobs}
    return {"logprobs": True, **({"top_logprobs": params.logprobs} if params.logprobs else {})}


def _instructed(messages: list[Message], instruction: str) -> list[Message]:
    """The messages, the last of the user's with the instruction at its end."""
    for place in reversed(range(len(messages))):
        if messages[place].role == "user":
            told = Message("user", f"{messages[place].content}\n\n{instruction}")
            return [*messages[:place], told, *messages[place + 1 :]]
    return [*messages, Message("user", instruction)]


def _cannot_continue(prompt: Prompt) -> str:
    if prompt.open_role != "assistant":
        return (
            f"the answer is to be part of a {prompt.open_role} message, and a chat service writes assistant messages "
            "only; put gen() into pt.assistant(...)"
        )
    return (
        f"the assistant's message begins with {prompt.prefix[-80:]!r}, and this service may not continue a message: "
        "OpenAI's own begins a new one. Put the text into the user's message, or say what the backend is to do: "
        "OpenAIBackend(..., prefix='send') sends the message as it is, for services that go on with it; prefix='ask' "
        "asks the model to go on with it"
    )
