"""The fields of a request that say how text is sampled, the same for every endpoint of OpenAI's protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from palmette.constrained.errors import GrammarError
from palmette.constrained.grammar import Grammar
from palmette.runtime.errors import RequestError
from palmette.runtime.sampling_params import SamplingParams

from .errors import bad_request, refused

Strings = Annotated[list[str], Field(max_length=64)]

_DIRECT = frozenset(
    (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "min_tokens",
        "ignore_eos",
    )
)
_MODEL_DEFAULTS = frozenset(("temperature", "top_p", "top_k", "min_p", "repetition_penalty"))


class StrictModel(BaseModel):
    """Takes no field that it does not know, and no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class GrammarField(StrictModel):
    """A grammar of any kind, as the native protocol writes it."""

    kind: Literal["regex", "json_schema", "choices", "ebnf", "lark", "structural_tag", "reasoning"]
    source: str = Field(description="The pattern of a regex; what describes any other kind as JSON text.")
    options: str = Field("", description="Of a JSON schema, those that are not at their default, as JSON text.")

    def grammar(self) -> Grammar:
        """The grammar that this writes."""
        return Grammar(self.kind, self.source, self.options)


class StreamOptions(StrictModel):
    """What a stream holds besides the answer."""

    include_usage: bool = Field(False, description="A last chunk without choices tells the tokens that were used.")
    include_obfuscation: bool = Field(False, description="Accepted; nothing is padded here.")


class IgnoredFields(StrictModel):
    """Fields of OpenAI's service that mean nothing here; they are accepted so that clients need no change."""

    user: str | None = Field(None, description="Accepted, without effect.")
    metadata: dict[str, Any] | None = Field(None, description="Accepted, without effect: nothing is stored.")
    store: bool | None = Field(None, description="Accepted, without effect: nothing is stored.")
    service_tier: str | None = Field(None, description="Accepted, without effect; see `priority`.")
    safety_identifier: str | None = Field(None, description="Accepted, without effect.")
    prompt_cache_key: str | None = Field(None, description="Accepted, without effect: every prefix is cached.")
    prompt_cache_retention: str | None = Field(None, description="Accepted, without effect.")


class SamplingFields(IgnoredFields):
    """Sampling options. What is absent is as the model's own generation_config says, and else as stated."""

    model: str | None = Field(None, description="As GET /v1/models lists it; absent is the one there is.")
    n: int | None = Field(None, ge=1, le=1024, description="Answers to each prompt; 1 where absent.")
    stream: bool | None = Field(None, description="Whether the answer comes as server-sent events.")
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, description="0 is greedy. 1 where neither given nor the model's own.")
    top_p: float | None = Field(None, description="In (0, 1]. 1 where neither given nor the model's own.")
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 64, description="The same seed gives the same answer.")
    stop: str | Strings | None = Field(None, description="The answer ends before the first of these strings.")
    logit_bias: dict[str, float] | None = Field(None, description="Added to the logits of these token ids.")
    top_k: int | None = Field(None, description="Extension: only the k likeliest tokens; 0 is all of them.")
    min_p: float | None = Field(
        None, description="Extension: drops tokens less likely than this part of the likeliest."
    )
    repetition_penalty: float | None = Field(None, description="Extension: 1 is none.")
    min_tokens: int | None = Field(None, description="Extension: no end of sequence before so many tokens.")
    ignore_eos: bool | None = Field(None, description="Extension: the model's end tokens do not end the answer.")
    stop_regex: str | Strings | None = Field(None, description="Extension: ends before a match of these patterns.")
    stop_token_ids: list[int] | None = Field(None, description="Extension: the answer ends at these tokens.")
    regex: str | None = Field(None, description="Extension: the answer matches this pattern in full.")
    ebnf: str | None = Field(None, description="Extension: the answer matches this grammar, whose start is `root`.")
    grammar_: GrammarField | None = Field(
        None, alias="grammar", description="Extension: the answer matches this grammar, of any kind that there is."
    )
    rid: str | None = Field(
        None, min_length=1, max_length=256, description="Extension: an id to abort by, unique among open requests."
    )
    cache_salt: str | None = Field(None, max_length=1024, description="Extension: who shares prefixes with whom.")
    extra_key: str | None = Field(None, max_length=1024, description="SGLang's name for more of the cache_salt.")
    priority: int | None = Field(None, ge=-(1 << 31), lt=1 << 31, description="Extension: higher goes first.")
    timeout: float | None = Field(None, gt=0, le=1e7, allow_inf_nan=False, description="Extension: seconds to the end.")

    @property
    def answers(self) -> int:
        """How many answers to each prompt."""
        return 1 if self.n is None else self.n

    @property
    def namespace(self) -> str:
        """Within which prefixes are shared: the salt, and the extra key where there is one."""
        salt = self.cache_salt or ""
        return f"{salt}\x00{self.extra_key}" if self.extra_key else salt

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with what was used."""
        return self.stream_options is not None and self.stream_options.include_usage

    def check_streaming(self) -> None:
        """Raise ApiError if there are options for a stream that was not asked for."""
        if self.stream_options is not None and not self.stream:
            raise bad_request(
                "stream_options is for streams: set stream to true, or leave it out", param="stream_options"
            )

    def params(self, defaults: Mapping[str, float], **decided: Any) -> SamplingParams:
        """Sampling options: what the request gives, then the model's own defaults.

        Args:
            defaults: `ModelInfo.sampling_defaults`.
            decided: fields that the endpoint decides itself.

        Raises:
            ApiError: a value is out of its range.
        """
        given: dict[str, Any] = {name: value for name, value in defaults.items() if name in _MODEL_DEFAULTS}
        for name in self.model_fields_set:
            if (value := getattr(self, name)) is None:
                continue
            if name in _DIRECT:
                given[name] = value
            elif name in ("stop", "stop_regex"):
                given[name] = (value,) if isinstance(value, str) else tuple(value)
            elif name == "stop_token_ids":
                given[name] = tuple(value)
            elif name == "seed":
                given[name] = value % (1 << 64)
            elif name == "logit_bias":
                given[name] = _bias(value)
        try:
            return SamplingParams(**given, **decided)
        except RequestError as error:
            raise refused(error, fields=type(self).model_fields) from None

    def one_grammar(self, field: str, grammar: Grammar | None) -> tuple[Grammar | None, str | None]:
        """The grammar that an answer is held to, and the name of its field.

        Args:
            field, grammar: what the endpoint takes beside `regex`, `ebnf` and `grammar`.

        Raises:
            ApiError: one of them is no grammar, or there is more than one.
        """
        found = {
            field: grammar,
            "regex": grammar_of("regex", Grammar.regex, self.regex),
            "ebnf": grammar_of("ebnf", Grammar.ebnf, self.ebnf),
            "grammar": grammar_of("grammar", GrammarField.grammar, self.grammar_),
        }
        given = [(held, name) for name, held in found.items() if held is not None]
        if len(given) > 1:
            names = " and ".join(name for _, name in given)
            raise bad_request(f"{names} cannot be given together: an answer is held to one grammar", param=given[1][1])
        return given[0] if given else (None, None)


def grammar_of(field: str, build: Any, value: Any) -> Grammar | None:
    """The grammar that `build` makes of a field's value; None where the field is absent.

    Raises:
        ApiError: it is none.
    """
    if value is None:
        return None
    try:
        grammar: Grammar = build(value)
    except GrammarError as error:
        raise refused(error, grammar_param=field) from None
    return grammar


def _bias(given: Mapping[str, float]) -> dict[int, float]:
    try:
        return {int(token_id): value for token_id, value in given.items()}
    except ValueError:
        wrong = next(key for key in given if not key.strip().lstrip("-").isdigit())
        raise bad_request(f"logit_bias must map token ids to numbers, not {wrong!r}", param="logit_bias") from None
