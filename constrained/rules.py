"""The one intermediate form of every grammar: named rules over bytes.

A front end (regex.py, json_schema.py, ebnf.py and the like) builds `Rules`; simplify.py removes what can never match;
`Rules.verify` states what the automaton relies on. Nodes are values and may be shared between rules.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Set
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from .components import components
from .errors import GrammarError, UnsatisfiableGrammarError

ALL_BYTES = (1 << 256) - 1


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly these bytes; empty bytes match the empty string."""

    value: bytes


@dataclass(frozen=True, slots=True)
class ByteClass:
    """One byte of a set: bit b of `mask` says whether byte b is in it. Zero matches nothing."""

    mask: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """All `parts`, one after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Any one of `options`. No options match nothing (JSON Schema's `false`)."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`min` to `max` times `body`; `max` None is unbounded."""

    body: Node
    min: int
    max: int | None


@dataclass(frozen=True, slots=True)
class RuleRef:
    """What the rule called `name` matches."""

    name: str


@dataclass(frozen=True, slots=True)
class Except:
    """What `body` matches, less `words`. `body` may call rules only as the last thing it does, and counts nothing."""

    body: Node
    words: frozenset[bytes]


OPEN_OBJECT = 1
"""Flag of the ``{`` of an object that may have keys which its rules do not name."""
UNIQUE_ARRAY = 2
"""Flag of the ``[`` of an array whose elements must differ."""
OPEN_KEY = 4
"""Flag of a key that the rules do not name."""


@dataclass(frozen=True, slots=True)
class Flagged:
    """`body`, whose bytes are known by `flags` to whoever follows the text (distinct.py)."""

    body: Node
    flags: int


class StateGraph(ABC):
    """A graph whose edges are things to match: a set of texts that would take too many rules to write down.

    Its states are values, made as they are reached. Bodies are known by their index in `Graph.bodies`, and none of them
    matches the empty string.
    """

    @abstractmethod
    def edges(self, state: Hashable) -> Iterable[tuple[int, Hashable]]:
        """(index of a body, state after it) for everything that may come in `state`; dead ends may be among them."""

    @abstractmethod
    def ends(self, state: Hashable) -> bool:
        """Whether nothing more need come in `state`."""

    @abstractmethod
    def cost(self, state: Hashable, costs: Items[float]) -> float:
        """The least sum of `costs` ([bodies]) on a way from `state` to one that ends; infinite where there is none.

        A body of infinite cost matches nothing. A cost that is lower may only lower the result.
        """

    def near(self, state: Hashable, horizon: int) -> Hashable:
        """A state that may stand for `state` as far as the next `horizon` bodies go: counts far from their bounds."""
        return state

    def cover(self, state: Hashable) -> Items[int]:
        """For each set of `slices.CHARACTER_SETS`, how many characters of it may follow whatever they are.

        Empty, or fewer than there are, says nothing. Only for graphs whose bodies are single characters.
        """
        return ()


@dataclass(frozen=True, slots=True)
class Graph:
    """The texts of the ways through `spec` from `state` to an end."""

    spec: StateGraph
    bodies: tuple[Node, ...]
    state: Hashable


Node = Literal | ByteClass | Sequence | Choice | Repeat | RuleRef | Except | Flagged | Graph

EMPTY = Literal(b"")
NOTHING = Choice(())


def byte_range(low: int, high: int) -> ByteClass:
    """The bytes `low` to `high`, both included."""
    return ByteClass((1 << (high + 1)) - (1 << low))


def byte_set(members: Iterable[int]) -> ByteClass:
    """Exactly the bytes of `members`."""
    mask = 0
    for byte in members:
        mask |= 1 << byte
    return ByteClass(mask)


def optional(node: Node) -> Repeat:
    """`node` or nothing at all."""
    return Repeat(node, 0, 1)


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly inside `node`."""
    kind = type(node)  # not `match`: this is the inner loop of every pass over a grammar
    if kind is Sequence:
        return node.parts  # type: ignore[union-attr]  # mypy does not narrow by `kind is`
    if kind is Choice:
        return node.options  # type: ignore[union-attr]  # as above
    if kind is Graph:
        return node.bodies  # type: ignore[union-attr]  # as above
    return (node.body,) if isinstance(node, Repeat | Except | Flagged) else ()


def postorder(root: Node) -> list[Node]:
    """Every distinct node object of `root` once, children before parents. Iterative: patterns may nest deeply."""
    done: dict[int, Node] = {}
    entered: set[int] = set()
    todo = [root]
    while todo:
        node = todo[-1]
        if id(node) in entered:
            todo.pop()
            done[id(node)] = node  # once more where it was met twice before it was done: that keeps its place
        else:
            entered.add(id(node))
            todo.extend([child for child in children(node) if id(child) not in entered])
    return list(done.values())


def references(root: Node) -> set[str]:
    """Names of the rules that `root` refers to."""
    return {node.name for node in postorder(root) if isinstance(node, RuleRef)}


def holds(root: Node, known: Set[str], *, leaf: Callable[[Literal | ByteClass], bool]) -> dict[int, bool]:
    """A property of each node of `root` by id(): of leaves by `leaf`, of references by membership in `known`.

    A sequence has it when all parts do, a choice when any option does, a repetition when its body does or it may be
    empty. Both "matches something" and "matches the empty string" are of this shape.
    """
    value: dict[int, bool] = {}
    for node in postorder(root):
        match node:
            case Literal() | ByteClass():
                value[id(node)] = leaf(node)
            case Sequence(parts):
                value[id(node)] = all(value[id(part)] for part in parts)
            case Choice(options):
                value[id(node)] = any(value[id(option)] for option in options)
            case Repeat(body, least, _):
                value[id(node)] = least == 0 or value[id(body)]
            case RuleRef(name):
                value[id(node)] = name in known
            case Flagged(body, _) | Except(body, _):
                value[id(node)] = value[id(body)]
            case Graph():
                value[id(node)] = _graph_holds(node, lambda body: value[id(body)])
    return value


def _graph_holds(graph: Graph, holding: Callable[[Node], bool]) -> bool:
    """Whether some way to an end takes only bodies that hold."""
    costs = [0.0 if holding(body) else math.inf for body in graph.bodies]
    return graph.spec.cost(graph.state, costs) < math.inf


def is_productive_leaf(node: Literal | ByteClass) -> bool:
    """Whether the leaf matches anything."""
    return isinstance(node, Literal) or node.mask != 0


def is_nullable_leaf(node: Literal | ByteClass) -> bool:
    """Whether the leaf matches the empty string."""
    return isinstance(node, Literal) and not node.value


def rules_that_hold(rules: Mapping[str, Node], leaf: Callable[[Literal | ByteClass], bool]) -> set[str]:
    """The least set of rules with the property of `holds`, in time that grows as the rules do.

    Source: Dowling and Gallier, "Linear-time algorithms for testing the satisfiability of propositional Horn formulae",
    1984.
    """
    missing: dict[int, int] = {}  # by id() of a node, how many of its parts it still waits for
    users: dict[int, list[Node]] = {}  # by id() of a node, those that wait for it
    calls: dict[str, list[Node]] = {}
    todo: list[Node] = []
    done: set[int] = set()
    for node in {id(node): node for root in rules.values() for node in postorder(root)}.values():
        if isinstance(node, RuleRef):
            calls.setdefault(node.name, []).append(node)
        elif _holds_alone(node, leaf):
            todo.append(node)
            done.add(id(node))
        else:
            missing[id(node)] = len(node.parts) if isinstance(node, Sequence) else 1
            for part in children(node):
                users.setdefault(id(part), []).append(node)
    names: dict[int, list[str]] = {}
    for name, root in rules.items():
        names.setdefault(id(root), []).append(name)
    known: set[str] = set()
    while todo:
        node = todo.pop()
        done.add(id(node))
        for name in names.get(id(node), ()):
            known.add(name)
            todo.extend(calls.pop(name, ()))
        for user in users.get(id(node), ()):
            missing[id(user)] -= 1
            if isinstance(user, Graph):
                if id(user) not in done and _graph_holds(user, lambda body: id(body) in done):
                    done.add(id(user))
                    todo.append(user)
            elif missing[id(user)] == 0:
                todo.append(user)
    return known


def _holds_alone(node: Node, leaf: Callable[[Literal | ByteClass], bool]) -> bool:
    """Whether a node that is no reference has the property of `holds` whatever its parts are."""
    if isinstance(node, Literal | ByteClass):
        return leaf(node)
    if isinstance(node, Graph):
        return node.spec.ends(node.state)
    return node.min == 0 if isinstance(node, Repeat) else node == Sequence(())


@dataclass(frozen=True, slots=True)
class Rules:
    """A grammar over bytes: the texts that the rule called `start` matches.

    Attributes:
        start: name of the rule for the whole.
        rules: all rules by name.
        common: those of `rules` that many grammars share, in the same mapping object: they are flattened once.
    """

    start: str
    rules: Mapping[str, Node]
    common: Mapping[str, Node] = field(default_factory=dict, compare=False, repr=False)

    def verify(self) -> None:
        """Check what the automaton relies on.

        Raises:
            UnsatisfiableGrammarError: some rule matches nothing.
            GrammarError: no rules, a reference to no rule, impossible bounds, or left recursion.
        """
        if self.start not in self.rules:
            raise GrammarError(f"there is no start rule {self.start!r}")
        for name, node in self.rules.items():
            self._verify_nodes(name, node)
        dead = self.rules.keys() - rules_that_hold(self.rules, is_productive_leaf)
        if dead:
            raise UnsatisfiableGrammarError(f"rule {min(dead)!r} matches nothing")
        if cycles := left_cycles(self.rules):
            raise GrammarError(f"rule {min(cycles[0])!r} is left-recursive")

    def _verify_nodes(self, name: str, root: Node) -> None:
        for node in postorder(root):
            match node:
                case RuleRef(target) if target not in self.rules:
                    raise GrammarError(f"rule {name!r} refers to {target!r}, which does not exist")
                case Repeat(_, least, most) if least < 0 or (most is not None and most < least):
                    raise GrammarError(f"rule {name!r} repeats {least} to {most} times")
                case ByteClass(mask) if not 0 <= mask <= ALL_BYTES:
                    raise GrammarError(f"rule {name!r} has a class that is no set of bytes")
                case _:
                    pass


def left_cycles(rules: Mapping[str, Node]) -> list[set[str]]:
    """Sets of rules that reach each other by left calls, one call of which is not the last thing its rule does.

    Such a cycle of calls before any byte would grow the stack for ever; a cycle of tail calls only adds nothing.
    """
    nullable = rules_that_hold(rules, is_nullable_leaf)
    calls = {name: left_calls(node, nullable) for name, node in rules.items()}
    return [
        component
        for component in components(calls)
        if any(not is_tail and target in component for name in component for target, is_tail in calls[name].items())
    ]


def left_calls(root: Node, nullable: set[str]) -> dict[str, bool]:
    """Rules that `root` may call before it takes a byte; True where every such call is the last thing it does."""
    empty = holds(root, nullable, leaf=is_nullable_leaf)
    calls: dict[str, bool] = {}
    todo: list[tuple[Node, bool]] = [(root, True)]
    seen: set[tuple[int, bool]] = set()
    while todo:
        node, is_tail = todo.pop()
        if (id(node), is_tail) in seen:
            continue
        seen.add((id(node), is_tail))
        match node:
            case RuleRef(name):
                calls[name] = calls.get(name, True) and is_tail
            case Choice(options):
                todo.extend((option, is_tail) for option in options)
            case Repeat(body, _, most):
                todo.append((body, is_tail and most == 1))
            case Flagged(body, _):
                todo.append((body, is_tail))
            case Except(body, _):
                todo.append((body, False))
            case Graph(_, bodies, _):
                todo.extend((body, False) for body in bodies)
            case Sequence(parts):
                for index, part in enumerate(parts):
                    todo.append((part, is_tail and index == len(parts) - 1))
                    if not empty[id(part)]:
                        break
            case _:
                pass
    return calls
