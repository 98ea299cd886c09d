"""How an answer is held to its grammar by a service that others wrote: by a schema where it can be, else by asking.

Whatever the service promises, the answer is checked here: what the program gets matches its grammar, or it failed.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from palmette.constrained.errors import GrammarError
from palmette.constrained.grammar import Grammar
from palmette.constrained.json_options import options_of, options_text
from palmette.constrained.whole_match import matches

from .openai_errors import ServiceError
from .openai_replies import Answer, Endpoint

_KEY = "answer"
_FENCE = re.compile(r"\s*```[a-z]*\n(.*?)\n?```\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Held:
    """How the answers to one request are held to a grammar.

    Attributes:
        fields: what the request says of it.
        wrapped: the answer is the one member of a JSON object: a string ("text"), or any value ("json").
        trusted: the service is Palmette and holds answers to any grammar itself, so they are not checked again.
        instruction: what the model is told where nothing else holds it.
    """

    grammar: Grammar
    fields: dict[str, object] = field(default_factory=dict)
    wrapped: Literal["text", "json"] | None = None
    trusted: bool = False
    instruction: str = ""

    @property
    def may_stream(self) -> bool:
        """Whether the text can be shown as it comes: the service holds it, and writes it as it is."""
        return bool(self.fields) and self.wrapped is None and self.grammar.kind != "reasoning"

    def read(self, answer: Answer) -> str | None:
        """The text of an answer that matches the grammar; None where it does not.

        Raises:
            GrammarError: the grammar is too large to check texts against.
        """
        if self.trusted:
            apart = self.grammar.kind == "reasoning" and bool(answer.reasoning)
            return _with_reasoning(self.grammar, answer.reasoning, answer.text) if apart else answer.text
        for text in self._candidates(answer):
            if _allows(self.grammar, text):
                return text
        return None

    def _candidates(self, answer: Answer) -> Iterator[str]:
        """Texts that the answer may mean, the most literal first."""
        texts = [] if self.wrapped is None else _unwrapped(answer.text, self.wrapped)
        fenced = _FENCE.fullmatch(answer.text)
        texts += [answer.text, answer.text.strip(), *([fenced.group(1)] if fenced else [])]
        for text in dict.fromkeys(texts):
            if self.grammar.kind == "reasoning" and answer.reasoning:
                yield _with_reasoning(self.grammar, answer.reasoning, text)
            yield text


def asked(grammar: Grammar) -> Held:
    """Nothing holds the model but what it is told."""
    inner = _without_reasoning(grammar)
    return Held(grammar, instruction=_INSTRUCTIONS[inner.kind].format(_shown(inner)))


def by_schema(grammar: Grammar) -> Held:
    """`response_format` holds the model where a schema can say what the grammar says; else it is asked."""
    inner = _without_reasoning(grammar)
    if inner.kind == "json_schema":
        schema, wrapped = _rooted(json.loads(inner.source))
    elif inner.kind == "choices":
        schema, wrapped = _wrap({"type": "string", "enum": json.loads(inner.source)}, {}), True
    elif inner.kind == "regex":
        schema, wrapped = _wrap({"type": "string", "pattern": f"^(?:{inner.source})$"}, {}), True
    else:
        return asked(grammar)
    if schema is None:
        return asked(grammar)
    named = {"name": "answer", "schema": schema, "strict": _is_strict(schema)}
    fields: dict[str, object] = {"response_format": {"type": "json_schema", "json_schema": named}}
    return Held(grammar, fields, ("json" if inner.kind == "json_schema" else "text") if wrapped else None)


def by_extensions(grammar: Grammar, endpoint: Endpoint, *, trusted: bool) -> Held:
    """Palmette's own fields, which hold the model to any grammar; other servers know some of them too."""
    return Held(grammar, _extension_fields(grammar, endpoint), trusted=trusted)


def _extension_fields(grammar: Grammar, endpoint: Endpoint) -> dict[str, object]:
    if grammar.kind == "regex":
        return {"regex": grammar.source}
    source = json.loads(grammar.source)
    if grammar.kind == "choices":
        return {"regex": "|".join(map(re.escape, source))}
    if grammar.kind == "ebnf" and source["root"] == "root":
        return {"ebnf": source["ebnf"]}
    if grammar.kind == "json_schema" and not grammar.options:
        if endpoint == "/completions":
            return {"json_schema": source}
        named = {"name": "answer", "schema": source, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    return {"grammar": {"kind": grammar.kind, "source": grammar.source, "options": grammar.options}}


def mismatch(held: Held, answers: list[Answer], attempts: int) -> ServiceError:
    """The error of a generation of which no answer matched, however often it was asked for."""
    last = answers[-1]
    cut = "; it was cut off, and a larger max_tokens lets it end" if last.finish == "length" else ""
    grammar = held.grammar
    source = grammar.source if len(grammar.source) <= 200 else f"{grammar.source[:200]}..."
    return ServiceError(
        "GrammarError",
        f"after {attempts} attempt(s) no answer matched the {grammar.kind} {source}; the last was "
        f"{last.text[-200:]!r}{cut}. This service does not hold answers to such a grammar; say in the prompt what is "
        "wanted, raise grammar_attempts, or run the program on an engine, which holds them to any grammar",
    )


_INSTRUCTIONS = {
    "regex": "Your answer must match this regular expression in full, and nothing may stand around it: {}",
    "json_schema": "Answer with JSON alone, which must validate against this JSON Schema: {}",
    "choices": "Answer with exactly one of these, and nothing else: {}",
    "ebnf": "Your answer must match the rule root of this grammar in full, and nothing may stand around it:\n{}",
    "lark": "Your answer must match the rule start of this grammar in full, and nothing may stand around it:\n{}",
    "structural_tag": "Your answer must have the form that this structural tag describes: {}",
}


def _shown(grammar: Grammar) -> str:
    """The grammar as a model can read it."""
    if grammar.kind in ("ebnf", "lark"):
        source = json.loads(grammar.source)
        return str(source[grammar.kind])
    return grammar.source


def _without_reasoning(grammar: Grammar) -> Grammar:
    """The grammar of what follows the reasoning."""
    return Grammar(*json.loads(grammar.source)["inner"]) if grammar.kind == "reasoning" else grammar


def _with_reasoning(grammar: Grammar, reasoning: str, text: str) -> str:
    """The text of a model that a service shows in two parts."""
    spec = json.loads(grammar.source)
    begin = "" if spec["begun"] else spec["begin"]
    return f"{begin}{reasoning}{spec['end']}{text}"


def _allows(grammar: Grammar, text: str) -> bool:
    """Whether the text matches; of JSON, whether some spelling of the same value does."""
    if matches(grammar, text):
        return True
    if grammar.kind != "json_schema":
        return False
    options = dataclasses.replace(options_of(grammar.options), whitespace="any", key_order="any", escapes="all")
    try:
        return matches(Grammar("json_schema", grammar.source, options_text(options)), text)
    except GrammarError:  # any order of keys can be too much to hold; then the schema's own order counts
        return matches(grammar, _compacted(text))


def _compacted(text: str) -> str:
    try:
        return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _unwrapped(text: str, wrapped: str) -> list[str]:
    """What the one member of an object says; nothing where the text is no such object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(value, dict) or set(value) != {_KEY}:
        return []
    inner = value[_KEY]
    if wrapped == "json":
        return [json.dumps(inner, separators=(",", ":"), ensure_ascii=False)]
    return [inner] if isinstance(inner, str) else []


def _rooted(schema: Any) -> tuple[dict[str, Any] | None, bool]:
    """The schema as a service takes it, which wants an object at the root, and whether it was wrapped into one."""
    if isinstance(schema, dict) and schema.get("type") == "object" and "properties" in schema:
        return schema, False
    if isinstance(schema, bool):
        return (_wrap({}, {}), True) if schema else (None, False)
    if any(not ref.startswith(("#/$defs/", "#/definitions/")) for ref in _references(schema)):
        return None, False  # a reference to the root would mean another schema once it is wrapped
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return _wrap({name: value for name, value in schema.items() if name not in shared}, shared), True


def _wrap(schema: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {_KEY: schema},
        "required": [_KEY],
        "additionalProperties": False,
        **shared,
    }


def _references(schema: Any) -> Iterator[str]:
    for part in _parts(schema):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]


def _is_strict(schema: Any) -> bool:
    """Whether every object names all of its keys and requires them: what services hold answers to exactly."""
    return all(
        part.get("additionalProperties") is False and set(part.get("required", ())) == set(part.get("properties", ()))
        for part in _parts(schema)
        if part.get("type") == "object" or isinstance(part.get("properties"), dict)
    )


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping inside a JSON value."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
