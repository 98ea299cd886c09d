"""What `/generate` and the operations take, as pydantic models: they check requests and make the OpenAPI page."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel, ConfigDict, Field, Strict, create_model

from palmette.runtime.sampling_params import SamplingParams

from .wire_schemas import said_of_attributes

MAX_ANSWERS = 128
"""Most answers of one prompt."""

MAX_PROMPTS = 1024
"""Most prompts of one request."""

GRAMMAR_FIELDS = ("regex", "json_schema", "ebnf", "lark", "structural_tag", "choices")


def _field_type(annotation: Any) -> Any:
    """A type that takes the same JSON, and no other: lists for tuples, no numbers in strings."""
    if annotation in (int, float, bool, str):
        return Annotated[annotation, Strict()]
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple:
        return list[_field_type(arguments[0])]  # type: ignore[misc]  # a type that is known only when it is made
    if NoneType in arguments:
        return Union[tuple(_field_type(each) if each is not NoneType else None for each in arguments)]  # noqa: UP007
    return annotation


def _sampling_fields() -> dict[str, Any]:
    said = said_of_attributes(SamplingParams.__doc__ or "")
    return {
        field.name: (
            _field_type(field.type),
            Field(default=_json_default(field), description=said[field.name]),
        )
        for field in msgspec.structs.fields(SamplingParams)
    }


def _json_default(field: msgspec.structs.FieldInfo) -> Any:
    default = field.default if field.default is not msgspec.NODEFAULT else {}
    return list(default) if isinstance(default, tuple) else default


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid")


if TYPE_CHECKING:

    class SamplingOptions(_Checked):
        """Made below from the fields of SamplingParams."""

else:
    SamplingOptions = create_model("SamplingOptions", __base__=_Checked, **_sampling_fields())
    SamplingOptions.__doc__ = (
        "How answers are sampled and when they end. The model's own defaults go before those shown."
    )


class GenerateRequest(_Checked):
    """Generate after one prompt, or after each of several."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_tokens": 8}},
                {"text": ["Rate it: ", "And this: "], "regex": "[1-5]", "stream": True},
                {"input_ids": [504, 2025, 314], "sampling_params": {"max_tokens": 8, "logprobs": 2}, "n": 2},
            ]
        },
    )

    text: Annotated[str, Strict()] | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)] | None = Field(
        default=None, description="The prompt, or a list of prompts. Either this or `input_ids`."
    )
    input_ids: (
        Annotated[list[Annotated[int, Strict()]], Field(min_length=1)]
        | Annotated[
            list[Annotated[list[Annotated[int, Strict()]], Field(min_length=1)]],
            Field(min_length=1, max_length=MAX_PROMPTS),
        ]
        | None
    ) = Field(default=None, description="The prompt as token ids, or a list of such prompts.")
    parse_special: Annotated[bool, Strict()] = Field(
        default=False, description="Special tokens that `text` spells are taken as such, and not as text."
    )
    sampling_params: SamplingOptions = Field(default_factory=SamplingOptions)
    n: Annotated[int, Strict()] = Field(default=1, ge=1, le=MAX_ANSWERS, description="Answers of each prompt.")
    regex: Annotated[str, Strict()] | None = Field(
        default=None, description="The answer matches this pattern (Python's `re`) in full."
    )
    json_schema: dict[str, Any] | bool | Annotated[str, Strict()] | None = Field(
        default=None, description="The answer is JSON that validates against this schema, or against the one it spells."
    )
    ebnf: Annotated[str, Strict()] | None = Field(default=None, description="The answer matches rule `root` (GBNF).")
    lark: Annotated[str, Strict()] | None = Field(default=None, description="The answer matches rule `start` (Lark).")
    structural_tag: dict[str, Any] | Annotated[str, Strict()] | None = Field(
        default=None, description="Free text with structured parts between tags, as XGrammar describes them."
    )
    choices: list[Annotated[str, Strict()]] | None = Field(default=None, description="The answer is one of these.")
    stream: Annotated[bool, Strict()] = Field(default=False, description="Send the text as it comes, as SSE.")
    rid: Annotated[str, Strict()] | None = Field(
        default=None, min_length=1, max_length=256, description="An id to abort the request by, unique among open ones."
    )
    cache_salt: Annotated[str, Strict()] = Field(
        default="", max_length=1024, description="Prefixes are shared only among requests of the same salt."
    )
    priority: Annotated[int, Strict()] = Field(
        default=0, ge=-(1 << 31), lt=1 << 31, description="Requests of a higher one go first."
    )
    timeout_s: Annotated[float, Strict()] | None = Field(
        default=None, gt=0, le=1e7, description="The request fails when it has not ended after so many seconds."
    )


class AbortBody(_Checked):
    """Which request to end."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"rid": "my-request-7"}]})

    rid: Annotated[str, Strict()] = Field(
        description="The `rid` of a `/generate` request, or the id of any other request that is being answered."
    )
