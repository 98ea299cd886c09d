"""Rules for JSON objects: members in the order of the schema, then others whose keys are not declared."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import lru_cache

from .code_points import ANY, CodePoints
from .json_text import ANY_OBJECT, ANY_VALUE, COLON, COMMA, KEY_REST, QUOTE, key_characters, string_literal
from .rules import Choice, Literal, Node, Repeat, RuleRef, Sequence, optional


@dataclass(frozen=True, slots=True)
class Member:
    """A declared property."""

    key: str
    value: Node
    required: bool


def lower_object(name: str, members: Items[Member], extra: Node, rules: dict[str, Node]) -> Node:
    """An object of `members` in order, then any number of others with values `extra`.

    No declared key comes twice. Undeclared keys may repeat: that none does is beyond a finite set of rules.

    Args:
        name: prefix of the names of the rules that are added to `rules`.
        extra: values of undeclared keys; `NOTHING` or a rule that matches nothing forbids them.
    """
    if not members and extra == ANY_VALUE:
        return ANY_OBJECT
    key = _undeclared_key(name, [member.key for member in members], rules)
    other = Sequence((key, COLON, extra))
    more_others = Repeat(Sequence((COMMA, other)), 0, None)
    first: Node = optional(Sequence((other, more_others)))
    more: Node = more_others
    leading = _leading(members)
    for index in reversed(range(len(members))):
        following = more
        more = _add(rules, f"{name}~more{index}", members[index], following, following, (COMMA,))
        if index < leading:
            first = _add(rules, f"{name}~first{index}", members[index], following, first, ())
    return Sequence((Literal(b"{"), first, Literal(b"}")))


def _leading(members: Items[Member]) -> int:
    """How many members may be the first that is written: up to the first required one."""
    for index, member in enumerate(members):
        if member.required:
            return index + 1
    return len(members)


def _add(
    rules: dict[str, Node], name: str, member: Member, following: Node, without: Node, separator: tuple[Node, ...]
) -> Node:
    """A rule that writes `member` and goes on with `following`, or, if it is optional, goes on with `without`."""
    written = Sequence((*separator, string_literal(member.key), COLON, member.value, following))
    rules[name] = written if member.required else Choice((written, without))
    return RuleRef(name)


@dataclass(slots=True)
class _KeyTrie:
    """Keys that begin alike; `ends` where one of them ends here."""

    ends: bool = False
    after: dict[int, _KeyTrie] = field(default_factory=dict)


def _undeclared_key(name: str, keys: Iterable[str], rules: dict[str, Node]) -> Node:
    """Any key but `keys`: one rule for every beginning of one, which either leaves them all or goes on."""
    root = _KeyTrie()
    for key in keys:
        here = root
        for char in key:
            here = here.after.setdefault(ord(char), _KeyTrie())
        here.ends = True
    places = [root]
    for trie in places:  # grows while it is walked: breadth first
        places.extend(trie.after.values())
    numbers = {id(trie): number for number, trie in enumerate(places)}
    for trie in places:
        onward = {char: RuleRef(f"{name}~key{numbers[id(child)]}") for char, child in trie.after.items()}
        rules[f"{name}~key{numbers[id(trie)]}"] = _key_place(trie.ends, onward)
    return Sequence((QUOTE, RuleRef(f"{name}~key0")))


def _key_place(ends: bool, onward: dict[int, RuleRef]) -> Node:
    options: list[Node] = [] if ends else [QUOTE]
    options.append(Sequence((_all_but(frozenset(onward)), KEY_REST)))
    options.extend(Sequence((_single(char), child)) for char, child in onward.items())
    return Choice(tuple(options))


@lru_cache(maxsize=4096)
def _all_but(chars: frozenset[int]) -> Node:
    return key_characters(ANY - CodePoints.of((char, char) for char in chars))


@lru_cache(maxsize=4096)
def _single(char: int) -> Node:
    return key_characters(CodePoints.single(char))
