"""What /v1/completions and /v1/chat/completions take, as pydantic models: these also make the OpenAPI page."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, FailFast, Field

from palmette.constrained.grammar import Grammar
from palmette.runtime.sampling_params import MAX_LOGPROBS

from .errors import bad_request
from .sampling_fields import SamplingFields, StrictModel, grammar_of
from .validation import register

MAX_PROMPTS = 1024
MAX_MESSAGES = 65_536

TokenIds = list[Annotated[int, Field(ge=0, lt=1 << 31)]]
Role = Literal["system", "developer", "user", "assistant", "tool"]


class CompletionRequest(SamplingFields):
    """A text to go on with."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0},
                {"prompt": "Grade: ", "regex": "[1-5]"},
                {"prompt": ["One, two,", "Uno, dos,"], "max_tokens": 8, "stop": "\n", "stream": True},
            ]
        }
    )

    prompt: str | Annotated[list[str], Field(max_length=MAX_PROMPTS)] | TokenIds | list[TokenIds] = Field(
        description="Text, or token ids; or a list of either, for as many answers. Special tokens that text spells are"
        " ordinary text unless parse_special_tokens is set."
    )
    max_tokens: int | None = Field(None, ge=0, description="16 where absent. 0 only with echo, to score the prompt.")
    best_of: int | None = Field(None, description="Only as many as n: every answer is returned.")
    echo: bool | None = Field(None, description="The prompt stands before the answer; its log-probabilities as well.")
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="The likeliest tokens at each place.")
    suffix: str | None = Field(None, description="Not supported: these models write forwards only.")
    json_schema: dict[str, Any] | bool | str | None = Field(
        None, description="Extension: the answer is JSON that is valid under this schema."
    )
    parse_special_tokens: bool | None = Field(
        None,
        description="Extension: text that spells a special token is that token; for prompts you rendered yourself.",
    )

    def grammar(self) -> tuple[Grammar | None, str | None]:
        """What the answer must match, and the field that says so. Raises: as `SamplingFields.one_grammar`."""
        return self.one_grammar("json_schema", grammar_of("json_schema", Grammar.json_schema, self.json_schema))

    def check(self) -> None:
        """Raise ApiError if fields do not go together or cannot be served."""
        self.check_streaming()
        if self.suffix:
            raise bad_request("suffix is not supported: these models write forwards only; leave it out", param="suffix")
        if self.best_of is not None and self.best_of != self.answers:
            message = f"best_of={self.best_of} must equal n={self.answers}: every answer is returned; raise n instead"
            raise bad_request(message, param="best_of")
        if self.max_tokens == 0 and not self.echo:
            raise bad_request("max_tokens must be at least 1, not 0, unless echo is set", param="max_tokens")


class ContentPart(StrictModel):
    """Part of a message. These models read text."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(StrictModel):
    """What was called: a name and its arguments as JSON text."""

    name: str
    arguments: str | dict[str, Any] = ""


class MessageToolCall(StrictModel):
    """A call that the assistant made earlier."""

    model_config = ConfigDict(extra="ignore")

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(StrictModel):
    """One message of a conversation; what an answer's message holds may be sent back as it is."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = Field(None, max_length=256)
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = Field(None, description="Another name of reasoning_content.")
    refusal: str | None = Field(None, description="Accepted, not shown to the model.")
    annotations: list[Any] | None = Field(None, description="Accepted, not shown to the model.")
    audio: None = None
    function_call: None = Field(None, description="Not supported; see tool_calls.")


class JsonSchemaFormat(StrictModel):
    """A named schema. Always enforced, `strict` or not."""

    model_config = ConfigDict(populate_by_name=True)

    name: str = Field("answer", max_length=256)
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = Field(None, description="The schema is enforced either way.")


class ResponseFormat(StrictModel):
    """What the answer must look like."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = Field(None, description="Of a structural tag, as XGrammar describes it.")
    structures: list[dict[str, Any]] | None = Field(None, description="Of a structural tag in the older form.")
    triggers: list[str] | None = Field(None, description="Of a structural tag in the older form.")

    def grammar(self) -> Grammar | None:
        """The grammar of the format; None for text.

        Raises:
            ApiError: the schema is missing.
            GrammarError: it is none.
        """
        if self.type == "text":
            return None
        if self.type == "json_object":
            return Grammar.json_object()
        if self.type == "structural_tag":
            return Grammar.structural_tag(self.model_dump(exclude_none=True, exclude={"json_schema"}))
        if self.json_schema is None:
            message = 'response_format.json_schema is missing: it must be {"name": ..., "schema": {...}}'
            raise bad_request(message, param="response_format.json_schema")
        return Grammar.json_schema(self.json_schema.schema_)


class ChatRequest(SamplingFields):
    """A conversation to answer."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"messages": [{"role": "user", "content": "Name three trees."}], "max_tokens": 64},
                {
                    "messages": [{"role": "user", "content": "Ada is 36 years old."}],
                    "response_format": {
                        "type": "json_schema",
                        "json_schema": {
                            "name": "person",
                            "schema": {
                                "type": "object",
                                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                                "required": ["name", "age"],
                            },
                        },
                    },
                },
                {
                    "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
                    "tools": [
                        {
                            "type": "function",
                            "function": {
                                "name": "weather",
                                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
                            },
                        }
                    ],
                    "tool_choice": "required",
                },
            ]
        }
    )

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES), FailFast()]
    max_completion_tokens: int | None = Field(None, ge=1, description="All that the context has left where absent.")
    max_tokens: int | None = Field(None, ge=1, description="The older name of max_completion_tokens.")
    logprobs: bool | None = Field(None, description="Whether log-probabilities of the answer's tokens are returned.")
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="Likeliest tokens at each place.")
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = Field(None, description="Functions that the model may call.")
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="none, auto, required, or a function; auto where absent and there are tools."
    )
    parallel_tool_calls: bool | None = Field(None, description="Whether there may be several calls; true where absent.")
    reasoning_effort: str | None = Field(None, description="Given to the chat template as it is.")
    modalities: list[Literal["text"]] | None = Field(None, description="Only text.")
    prediction: dict[str, Any] | None = Field(None, description="Accepted, without effect.")
    verbosity: str | None = Field(None, description="Accepted, without effect.")
    add_generation_prompt: bool | None = Field(
        None, description="Extension: whether the template asks for an answer; true unless continue_final_message."
    )
    continue_final_message: bool | None = Field(
        None, description="Extension: the answer goes on with the last message, which is the assistant's."
    )
    separate_reasoning: bool | None = Field(
        None, description="Extension: reasoning is told as reasoning_content, not as text; true where absent."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Extension: further values for the model's chat template, such as enable_thinking."
    )

    def grammar(self) -> tuple[Grammar | None, str | None]:
        """What the answer must match, and the field that says so. Raises: as `SamplingFields.one_grammar`."""
        own = grammar_of("response_format", ResponseFormat.grammar, self.response_format)
        return self.one_grammar("response_format", own)

    def max_output(self, context_length: int) -> int:
        """Most tokens of the answer; a bound that the context sets anyway where the request names none."""
        limits = [limit for limit in (self.max_completion_tokens, self.max_tokens) if limit is not None]
        return min(limits, default=context_length)

    def check(self) -> None:
        """Raise ApiError if fields do not go together."""
        self.check_streaming()
        if self.top_logprobs is not None and not self.logprobs:
            raise bad_request("top_logprobs needs logprobs to be true", param="top_logprobs")
        if self.continue_final_message:
            if self.add_generation_prompt:
                message = "add_generation_prompt and continue_final_message cannot both be true: choose one of them"
                raise bad_request(message, param="continue_final_message")
            if self.messages[-1].role != "assistant":
                message = f"continue_final_message needs a last message of the assistant, not {self.messages[-1].role}"
                raise bad_request(message, param="continue_final_message")


register(CompletionRequest, ChatRequest, ChatMessage, ResponseFormat)
