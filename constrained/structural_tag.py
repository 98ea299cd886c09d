"""Structural tags: free text and structured parts, composed as a tree of formats, as rules over bytes.

    {"type": "structural_tag", "format": FORMAT}
    {"type": "structural_tag", "structures": [{"begin", "schema", "end"}, ...], "triggers": [...]}

The second is the older form of a `triggered_tags` format whose tags hold JSON. A FORMAT is an object with a `type`:

    const_string         value
    json_schema          json_schema
    regex                pattern                  (the dialect of `Grammar.regex`)
    grammar              grammar                  (the dialect of `Grammar.ebnf`)
    any_text             excludes
    sequence, or         elements
    optional, star, plus content
    repeat               content, min, max        (max -1: no bound)
    tag                  begin, content, end      (end: one string, or a list of them)
    triggered_tags       triggers, tags, at_least_one, stop_after_first, excludes
    tags_with_separator  separator, tags, at_least_one, stop_after_first

Free text (`any_text`, and what stands between the tags of `triggered_tags`) is whole characters without the strings of
`excludes` and without the ends of the nearest tag around it. Of `triggered_tags`, once a trigger has appeared a tag
that begins with it must follow, and with `at_least_one` the first tag stands at the beginning.

Source: XGrammar's documentation, "Structural Tag Usage"; field names and meanings are its. Formats over token ids and
the XML styles of parameters are refused by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from .ebnf import lower_ebnf
from .embed import embed
from .errors import GrammarError, UnsupportedGrammarError
from .free_text import free_text
from .grammar import Grammar, check_text
from .json_schema import lower_json_schema
from .limits import CompileLimits, Deadline
from .regex import lower_regex
from .rules import EMPTY, Choice, Literal, Node, Repeat, RuleRef, Rules, Sequence, optional
from .wire_source import read_source

_FLAGS = ("at_least_one", "stop_after_first")
_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # required and optional, besides `type`
    "const_string": (("value",), ()),
    "json_schema": (("json_schema",), ("style",)),
    "regex": (("pattern",), ()),
    "grammar": (("grammar",), ()),
    "any_text": ((), ("excludes",)),
    "sequence": (("elements",), ()),
    "or": (("elements",), ()),
    "optional": (("content",), ()),
    "star": (("content",), ()),
    "plus": (("content",), ()),
    "repeat": (("content", "min", "max"), ()),
    "tag": (("begin", "content", "end"), ()),
    "triggered_tags": (("triggers", "tags"), (*_FLAGS, "excludes")),
    "tags_with_separator": (("separator", "tags"), _FLAGS),
}
_REFUSED = {
    *("qwen_xml_parameter", "token", "exclude_token", "any_tokens"),
    *("token_triggered_tags", "dispatch", "token_dispatch"),
}
_ROUNDS: dict[str, tuple[int, int | None]] = {"optional": (0, 1), "star": (0, None), "plus": (1, None)}

_Object = Mapping[str, Any]
_Ends = tuple[str, ...]


def lower_structural_tag(source: str, limits: CompileLimits, deadline: Deadline) -> Rules:
    """Rules of the texts of a structural tag; `source` is that of `Grammar.structural_tag`.

    Raises:
        UnsupportedGrammarError: a format that is refused by name.
        UnsatisfiableGrammarError: nothing matches a part of it.
        GrammarError: not legal, with the JSON pointer of what is wrong.
        GrammarLimitError: too large, or nested too deeply.
    """
    limits.check("source_chars", len(source), "characters of the structural tag")
    spec = read_source(source, "a structural tag")
    lowering = _Lowering(limits, deadline)
    lowering.rules["start"] = lowering.whole(spec)
    return Rules("start", lowering.rules)


@dataclass(frozen=True, slots=True)
class _Tag:
    """A tag: what it begins with, and its content and end."""

    begin: str
    body: Node


class _Lowering:
    """The rules made so far. Recursion is bounded by the limit on nesting."""

    def __init__(self, limits: CompileLimits, deadline: Deadline) -> None:
        self.rules: dict[str, Node] = {}
        self._limits = limits
        self._deadline = deadline
        self._depth = 0
        self._formats: dict[str, Callable[[_Object, str, _Ends], Node]] = {
            "const_string": lambda format_, at, _: _literal(format_["value"], "value", f"{at}/value"),
            "json_schema": self._json_schema,
            "regex": self._regex,
            "grammar": self._grammar,
            "any_text": self._any_text,
            "sequence": lambda format_, at, ends: Sequence(self._elements(format_, at, ends)),
            "or": lambda format_, at, ends: Choice(self._elements(format_, at, ends)),
            "optional": self._rounds,
            "star": self._rounds,
            "plus": self._rounds,
            "repeat": self._repeat,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }

    def whole(self, spec: Any) -> Node:
        """The node of the outermost object."""
        if not isinstance(spec, dict) or spec.get("type") != "structural_tag":
            raise GrammarError("a structural tag is an object with type 'structural_tag'", pointer="/type")
        if "format" in spec:
            _check_fields(spec, ("format",), (), "structural_tag", "")
            return self._format(spec["format"], "/format", ())
        _check_fields(spec, ("structures", "triggers"), (), "structural_tag without 'format'", "")
        structures = _items(spec, "structures", "")
        tags = [self._structure(each, f"/structures/{index}") for index, each in enumerate(structures)]
        return self._dispatch({"triggers": spec["triggers"]}, tags, "", (), closes=False)

    def _structure(self, item: Any, at: str) -> _Tag:
        _check_fields(item, ("begin", "schema", "end"), (), "structure", at)
        schema = self._schema(item["schema"], f"{at}/schema")
        end = _literal(item["end"], "end", f"{at}/end")
        return _Tag(check_text(item["begin"], "begin", pointer=f"{at}/begin"), Sequence((schema, end)))

    def _format(self, format_: Any, at: str, ends: _Ends) -> Node:
        """The node of any format; `ends` are those of the nearest tag around it."""
        name = _type_of(format_, at)
        _check_fields(format_, *_FIELDS[name], name, at)
        self._depth += 1
        self._limits.check("nesting", self._depth, "formats inside formats", pointer=at)
        self._deadline.check()
        node = self._formats[name](format_, at, ends)
        self._limits.check("rules", len(self.rules), "rules of the structural tag", pointer=at)
        self._depth -= 1
        return node

    # Formats without formats inside

    def _json_schema(self, format_: _Object, at: str, _: _Ends) -> Node:
        if format_.get("style", "json") != "json":
            raise UnsupportedGrammarError(f"the style {format_['style']!r} is not supported", pointer=f"{at}/style")
        return self._schema(format_["json_schema"], f"{at}/json_schema")

    def _schema(self, schema: Any, at: str) -> Node:
        return self._embed(
            at, lambda: lower_json_schema(Grammar.json_schema(schema).source, self._limits, self._deadline)
        )

    def _regex(self, format_: _Object, at: str, _: _Ends) -> Node:
        source = Grammar.regex(format_["pattern"]).source
        return self._embed(f"{at}/pattern", lambda: lower_regex(source, self._limits, self._deadline))

    def _grammar(self, format_: _Object, at: str, _: _Ends) -> Node:
        source = Grammar.ebnf(format_["grammar"]).source
        return self._embed(f"{at}/grammar", lambda: lower_ebnf(source, self._limits, self._deadline))

    def _embed(self, at: str, lower: Callable[[], Rules]) -> Node:
        try:
            return embed(lower(), f"{at}:", self.rules, self._limits)
        except GrammarError as error:
            raise type(error)(str(error), pointer=at) from error

    def _any_text(self, format_: _Object, at: str, ends: _Ends) -> Node:
        return free_text(
            self.rules,
            f"{at}:text",
            then={},
            forbidden=(*_texts(format_, "excludes", at), *ends),
            may_end=True,
            limits=self._limits,
        )

    # Formats of formats

    def _elements(self, format_: _Object, at: str, ends: _Ends) -> tuple[Node, ...]:
        elements = _items(format_, "elements", at)
        return tuple(self._format(each, f"{at}/elements/{index}", ends) for index, each in enumerate(elements))

    def _rounds(self, format_: _Object, at: str, ends: _Ends) -> Node:
        return Repeat(self._format(format_["content"], f"{at}/content", ends), *_ROUNDS[format_["type"]])

    def _repeat(self, format_: _Object, at: str, ends: _Ends) -> Node:
        least = _count(format_["min"], "min", 0, at)
        most = _count(format_["max"], "max", -1, at)
        if 0 <= most < least:
            raise GrammarError(f"min is {least} and max is {most}, so there is nothing to repeat", pointer=f"{at}/max")
        return Repeat(self._format(format_["content"], f"{at}/content", ends), least, None if most < 0 else most)

    def _tag(self, format_: _Object, at: str, _: _Ends) -> Node:
        tag = self._read_tag(format_, at)
        return Sequence((Literal(tag.begin.encode()), tag.body))

    def _read_tag(self, item: Any, at: str) -> _Tag:
        """A tag, whose `type` may be left out where only tags are allowed."""
        if isinstance(item, dict) and item.get("type", "tag") != "tag":
            raise GrammarError(f"only tags are allowed here, not {item['type']!r}", pointer=f"{at}/type")
        _check_fields(item, *_FIELDS["tag"], "tag", at)
        begin = check_text(item["begin"], "begin", pointer=f"{at}/begin", empty=True)
        ends = _ends(item["end"], f"{at}/end")
        name = f"{at}:body"
        lower = self._closed if ends else self._format
        self.rules[name] = lower(item["content"], f"{at}/content", ends)
        return _Tag(begin, RuleRef(name))

    def _closed(self, content: Any, at: str, ends: _Ends) -> Node:
        """`content` and one of `ends`; free text ends where the first of them is complete."""
        name = _type_of(content, at)
        if name not in ("any_text", "triggered_tags"):
            return Sequence((self._format(content, at, ends), _one_of(ends)))
        _check_fields(content, *_FIELDS[name], name, at)
        if name == "triggered_tags":
            return self._dispatch(content, self._read_tags(content, at), at, ends, closes=True)
        return free_text(
            self.rules,
            f"{at}:text",
            then=dict.fromkeys(ends, EMPTY),
            forbidden=_texts(content, "excludes", at),
            may_end=False,
            limits=self._limits,
        )

    def _read_tags(self, format_: _Object, at: str) -> list[_Tag]:
        return [self._read_tag(each, f"{at}/tags/{index}") for index, each in enumerate(_items(format_, "tags", at))]

    def _triggered_tags(self, format_: _Object, at: str, ends: _Ends) -> Node:
        return self._dispatch(format_, self._read_tags(format_, at), at, ends, closes=False)

    def _dispatch(self, format_: _Object, tags: list[_Tag], at: str, ends: _Ends, *, closes: bool) -> Node:
        """Free text in which a trigger leads into its tags; with `closes` up to and with one of `ends`."""
        name = f"{at}:text"
        close = _one_of(ends) if closes else EMPTY
        after = close if _flag(format_, "stop_after_first", at) else RuleRef(name)
        then: dict[str, Node] = dict.fromkeys(ends if closes else (), EMPTY)
        for trigger, matching in _by_trigger(format_, tags, at).items():
            if trigger in ends:
                raise GrammarError(
                    f"the trigger {trigger!r} is an end of the tag around it too", pointer=f"{at}/triggers"
                )
            then[trigger] = Choice(
                tuple(Sequence((Literal(tag.begin[len(trigger) :].encode()), tag.body, after)) for tag in matching)
            )
        forbidden = (*_texts(format_, "excludes", at), *(() if closes else ends))
        text = free_text(self.rules, name, then=then, forbidden=forbidden, may_end=not closes, limits=self._limits)
        if not _flag(format_, "at_least_one", at):
            return text
        return Choice(tuple(Sequence((Literal(tag.begin.encode()), tag.body, after)) for tag in tags))

    def _tags_with_separator(self, format_: _Object, at: str, _: _Ends) -> Node:
        tags = Choice(tuple(Sequence((Literal(tag.begin.encode()), tag.body)) for tag in self._read_tags(format_, at)))
        separator = _literal(format_["separator"], "separator", f"{at}/separator", empty=True)
        more = EMPTY if _flag(format_, "stop_after_first", at) else Repeat(Sequence((separator, tags)), 0, None)
        some = Sequence((tags, more))
        return some if _flag(format_, "at_least_one", at) else optional(some)


def _by_trigger(format_: _Object, tags: list[_Tag], at: str) -> dict[str, list[_Tag]]:
    """The tags of each trigger, none of them empty, and no tag left over."""
    found = {}
    for index, trigger in enumerate(_texts(format_, "triggers", at)):
        found[trigger] = [tag for tag in tags if tag.begin.startswith(trigger)]
        if not found[trigger]:
            raise GrammarError(f"no tag begins with the trigger {trigger!r}", pointer=f"{at}/triggers/{index}")
    if not found:
        raise GrammarError("triggers must not be empty", pointer=f"{at}/triggers")
    for tag in tags:
        if not any(tag in matching for matching in found.values()):
            raise GrammarError(
                f"no trigger is a prefix of {tag.begin!r}, which a tag begins with", pointer=f"{at}/triggers"
            )
    return found


def _type_of(format_: Any, at: str) -> str:
    if not isinstance(format_, dict) or not isinstance(format_.get("type"), str):
        raise GrammarError(f"a format is an object with a 'type', not {format_!r}", pointer=at)
    name: str = format_["type"]
    if name in _REFUSED:
        raise UnsupportedGrammarError(
            f"the format {name!r} is not supported; these are: {', '.join(_FIELDS)}", pointer=f"{at}/type"
        )
    if name not in _FIELDS:
        raise GrammarError(f"there is no format {name!r}; {_hint(name, tuple(_FIELDS))}", pointer=f"{at}/type")
    return name


def _check_fields(item: Any, required: tuple[str, ...], others: tuple[str, ...], what: str, at: str) -> None:
    if not isinstance(item, dict):
        raise GrammarError(f"a {what} is an object, not {item!r}", pointer=at)
    known = (*required, *others, "type")
    for name in item:
        if name not in known:
            raise GrammarError(f"a {what} has no field {name!r}; {_hint(name, known)}", pointer=f"{at}/{name}")
    for name in required:
        if name not in item:
            raise GrammarError(f"a {what} needs the field {name!r}", pointer=at)


def _hint(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"


def _fail_type(what: str, value: Any, at: str) -> NoReturn:
    raise GrammarError(f"{what}, not {value!r}", pointer=at)


def _items(format_: _Object, name: str, at: str) -> list[Any]:
    value = format_[name]
    if not isinstance(value, list) or not value:
        _fail_type(f"{name} must be a non-empty list", value, f"{at}/{name}")
    return value


def _texts(format_: _Object, name: str, at: str) -> tuple[str, ...]:
    value = format_.get(name, [])
    if not isinstance(value, list):
        _fail_type(f"{name} must be a list of strings", value, f"{at}/{name}")
    return tuple(check_text(each, name, pointer=f"{at}/{name}/{index}") for index, each in enumerate(value))


def _ends(value: Any, at: str) -> _Ends:
    """The ends of a tag; none where it is the empty string, which lets the content run on."""
    if value == "":
        return ()
    if isinstance(value, list):
        return _texts({"end": value}, "end", at.removesuffix("/end"))
    return (check_text(value, "end", pointer=at),)


def _one_of(ends: _Ends) -> Node:
    return Choice(tuple(Literal(end.encode()) for end in ends))


def _literal(value: Any, what: str, at: str, *, empty: bool = False) -> Literal:
    return Literal(check_text(value, what, pointer=at, empty=empty).encode())


def _flag(format_: _Object, name: str, at: str) -> bool:
    value = format_.get(name, False)
    if not isinstance(value, bool):
        _fail_type(f"{name} must be true or false", value, f"{at}/{name}")
    return value


def _count(value: Any, what: str, low: int, at: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        _fail_type(f"{what} must be a whole number from {low}", value, f"{at}/{what}")
    return value
