"""What /v1/responses takes: pydantic models, which check requests and make the OpenAPI page."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from palmette.runtime.sampling_params import MAX_LOGPROBS

from .errors import bad_request
from .sampling_fields import SamplingFields, StrictModel
from .validation import register

MAX_ITEMS = 65_536
MAX_METADATA = 16
LOGPROBS = "message.output_text.logprobs"
"""The member of `include` that asks for log-probabilities."""

_REFUSED = {
    "background": "answers come with the response itself: leave background out, and set stream to see them come",
    "conversation": "conversations are not kept: send the items as input, or previous_response_id",
    "prompt": "prompt templates are not kept: send the text as instructions and input",
}


class InputPart(StrictModel):
    """Part of a message. These models read text."""

    model_config = ConfigDict(extra="ignore")

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(StrictModel):
    """A message, a call of a function, its output, or reasoning; what a response holds may be sent back as it is."""

    model_config = ConfigDict(extra="ignore")

    type: str | None = Field(None, description="message, function_call, function_call_output or reasoning.")
    id: str | None = None
    role: str | None = Field(None, description="user, assistant, system or developer.")
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = Field(None, description="Accepted, without effect.")


class TextFormat(StrictModel):
    """What the answer must look like."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, max_length=256)
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = Field(None, description="The schema is enforced either way.")

    def response_format(self) -> dict[str, Any]:
        """The same in the form of chat completions.

        Raises:
            ApiError: the schema is missing.
        """
        if self.type != "json_schema":
            return {"type": self.type}
        if self.schema_ is None:
            message = 'text.format.schema is missing: the format must be {"type": "json_schema", "name", "schema"}'
            raise bad_request(message, param="text.format.schema")
        return {"type": self.type, "json_schema": {"name": self.name or "answer", "schema": self.schema_}}


class TextOptions(StrictModel):
    """Options of the answer's text."""

    format: TextFormat | None = None
    verbosity: str | None = Field(None, description="Accepted, without effect.")


class ReasoningOptions(StrictModel):
    """Options of models that reason first."""

    effort: str | None = Field(None, description="Given to the chat template as it is.")
    summary: str | None = Field(None, description="Accepted, without effect: reasoning is returned whole.")
    generate_summary: str | None = Field(None, description="Accepted, without effect.")


class ResponsesRequest(SamplingFields):
    """Items to answer."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"input": "Name three trees.", "max_output_tokens": 64},
                {
                    "instructions": "Answer in one word.",
                    "input": [{"role": "user", "content": "What is the capital of France?"}],
                    "temperature": 0,
                    "stream": True,
                },
                {
                    "input": "Ada is 36 years old.",
                    "text": {
                        "format": {
                            "type": "json_schema",
                            "name": "person",
                            "schema": {"type": "object", "properties": {"name": {"type": "string"}}},
                        }
                    },
                },
            ]
        }
    )

    input: str | Annotated[list[InputItem], Field(max_length=MAX_ITEMS)] = Field(
        description="A user's message, or items: messages, function calls and their outputs, reasoning."
    )
    instructions: str | None = Field(None, description="A system message before the input; not kept for later ones.")
    max_output_tokens: int | None = Field(None, ge=1, description="All that the context has left where absent.")
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: list[dict[str, Any]] | None = Field(None, description="Functions that the model may call.")
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="none, auto, required, or a function; auto where absent and there are tools."
    )
    parallel_tool_calls: bool | None = Field(None, description="Whether there may be several calls; true where absent.")
    include: Annotated[list[str], Field(max_length=64)] | None = Field(
        None, description=f"{LOGPROBS} returns log-probabilities; others have no effect."
    )
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="Likeliest tokens at each place.")
    previous_response_id: str | None = Field(None, description="A stored response, which the input goes on from.")
    store: bool | None = Field(
        None,
        description="Whether the response can be fetched and gone on from; true where absent. Kept in memory only.",
    )
    metadata: dict[str, str] | None = Field(None, max_length=MAX_METADATA, description="Returned as it is.")
    truncation: Literal["disabled"] | None = Field(None, description="Only disabled: too long an input is an error.")
    background: bool | None = Field(None, description="Only false.")
    conversation: Any = Field(None, description="Not supported; see previous_response_id.")
    prompt: Any = Field(None, description="Not supported; see instructions.")
    max_tool_calls: int | None = Field(None, description="Accepted, without effect: there are no built-in tools.")
    n: Literal[1] | None = Field(None, description="Only 1.")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Extension: further values for the model's chat template, such as enable_thinking."
    )

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ()) or self.top_logprobs is not None

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    def check(self) -> None:
        """Raise ApiError if a field cannot be served."""
        self.check_streaming()
        for name, instead in _REFUSED.items():
            if getattr(self, name):
                raise bad_request(f"{name} is not supported; {instead}", param=name)


register(ResponsesRequest, InputItem, TextOptions, TextFormat)
