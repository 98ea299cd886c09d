"""The order in which the programs of a batch begin."""

from __future__ import annotations

import enum
import itertools
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import palmette as pt
from palmette.lang.batch_order import WINDOW, in_prefix_order
from palmette.lang.prefix_order import Key, depth_first, shared_in_all, shared_length
from palmette.lang.run import Run

# -- the trie ----------------------------------------------------------------------------------------------------------

KEYS = st.lists(st.lists(st.text("ab", max_size=5), max_size=3).map(tuple), max_size=30)


def read_in_order(keys: Sequence[Key], order: Sequence[int]) -> int:
    """Characters that a cache of one path reads: each key's, but for what it shares with the one before."""
    texts = ["", *("".join(keys[place]) for place in order)]
    return sum(len(text) - shared_length((before,), (text,)) for before, text in itertools.pairwise(texts))


@given(KEYS)
def test_every_place_comes_once(keys: list[Key]) -> None:
    """The order is a permutation, whatever must be shared."""
    for least in (1, 2, 4):
        assert sorted(depth_first(keys, least=least)) == list(range(len(keys)))


@given(st.lists(st.text("ab", max_size=6).map(lambda text: (text,)), max_size=30))
def test_a_cache_of_one_path_suffices(keys: list[Key]) -> None:
    """In this order a cache that holds the last key only reads each shared prefix once: no order does better."""
    shared = sum(len(text) for (text,) in keys) - shared_in_all(keys)
    assert read_in_order(keys, depth_first(keys, least=1)) == shared


@given(KEYS, st.integers(1, 4))
def test_groups_stand_together(keys: list[Key], least: int) -> None:
    """Keys that share a prefix with more than `least` more than with any other are contiguous, the earliest first."""
    order = depth_first(keys, least=least)
    place_of = {place: spot for spot, place in enumerate(order)}
    for length in range(least, 12, least):
        for group in groups_sharing(keys, length, least):
            spots = sorted(place_of[place] for place in group)
            assert spots == list(range(spots[0], spots[0] + len(group)))


def groups_sharing(keys: Sequence[Key], length: int, least: int) -> Iterator[list[int]]:
    """Groups of keys that share `length` characters, and nobody else more than `length - least` with them."""
    for place, key in enumerate(keys):
        group = [other for other in range(len(keys)) if other == place or shared_length(key, keys[other]) >= length]
        outside = [shared_length(key, keys[other]) for other in range(len(keys)) if other not in group]
        if group[0] == place and len(group) > 1 and max(outside, default=0) <= length - least:
            yield group


def test_nothing_shared_changes_nothing() -> None:
    """Keys that share less than is worth it stay in the given order."""
    keys = [(f"A short beginning, then {random.Random(place).random()}",) for place in range(50)]
    assert depth_first(keys) == list(range(50))


def test_a_deep_trie() -> None:
    """Each key begins with the one before: three thousand of them nest as deep, without recursion."""
    keys = [("a" * place,) for place in range(1, 3000)]
    random.Random(1).shuffle(keys)
    order = depth_first(keys, least=1)
    assert sorted(order) == list(range(len(keys)))


def test_what_two_keys_share() -> None:
    """Parts are compared as they stand; what follows the first difference does not count."""
    assert shared_length(("ab", "cd"), ("ab", "ce", "x")) == 3
    assert shared_length(("ab", "cd"), ("abc", "d")) == 2
    assert shared_length((), ("a",)) == 0
    assert shared_length(("same",), ("same",)) == 4


# -- runs --------------------------------------------------------------------------------------------------------------


@pt.function
def ask(s: pt.ProgramState, question: str, document: str) -> None:
    s += "Read the document, and answer.\n" + document + "\n" + question + pt.gen("answer")


@pt.function
def ask_first(s: pt.ProgramState, question: str, document: str) -> None:
    s += "Read the question, then the document.\n" + question + "\n" + document + pt.gen("answer")


BACKEND = pt.MockBackend({"": "yes"}, record=False)
DOCUMENTS = [f"Document {number}: " + f"{number} words in a row. " * 20 for number in range(12)]
QUESTIONS = [f"Question {number}: " + "what stands there, and why does it? " * 3 for number in range(5)]
ITEMS = [{"question": question, "document": document} for question in QUESTIONS for document in DOCUMENTS]


def runs_of(function: pt.Function, items: Sequence[dict[str, Any]]) -> list[Run]:
    runs = [function._new_run((), item, BACKEND, timeout_s=None) for item in items]
    for place, run in enumerate(runs):
        run.state.place = place
    return runs


def places_of(runs: Iterable[Run], *, window: int = WINDOW) -> list[int]:
    """The runs' places in prefix order."""
    return [task.place for task in in_prefix_order(iter(runs), window=window)]


def changes(items: Sequence[dict[str, Any]], name: str) -> int:
    """How often an argument is another one than in the item before."""
    return 1 + sum(bool(one[name] != other[name]) for one, other in itertools.pairwise(items))


def shuffled(seed: int = 3) -> list[dict[str, Any]]:
    items = list(ITEMS)
    random.Random(seed).shuffle(items)
    return items


def test_the_heaviest_argument_comes_first() -> None:
    """Before anything ran, items with the same long document stand together, and the earliest item is first."""
    items = shuffled()
    order = places_of(runs_of(ask, items))
    ordered = [items[place] for place in order]
    assert changes(items, "document") > 40
    assert changes(ordered, "document") == len(DOCUMENTS)
    assert order[0] == 0


def test_the_order_in_the_prompt_is_learned() -> None:
    """Once a program has run, its prompt shows that the question stands before the document."""
    items = shuffled()
    ordered = []
    for run in in_prefix_order(iter(runs_of(ask_first, items))):
        assert isinstance(run, Run)
        run.run_kept()
        ordered.append(items[run.place])
    assert changes(ordered, "question") == len(QUESTIONS)
    assert changes(ordered, "document") > len(DOCUMENTS)


def test_common_beginnings_count() -> None:
    """Histories that go on from one another stand together, though no two are equal."""
    turns = [
        "".join(f"{talk}: turn {turn} of a long talk. " * 5 for turn in range(end))
        for talk in "abc"
        for end in range(1, 6)
    ]
    items = [{"document": text, "question": "?"} for text in turns]
    random.Random(2).shuffle(items)
    ordered = [items[place]["document"][0] for place in places_of(runs_of(ask, items))]
    assert len([name for name, _ in itertools.groupby(ordered)]) == 3


def test_small_arguments_keep_their_order() -> None:
    """Where there is nothing to win, nothing moves: a list of answers for a mock stays right."""
    items = [{"question": f"{number % 3}", "document": "short"} for number in range(30)]
    assert places_of(runs_of(ask, items)) == list(range(30))


@given(st.lists(st.sampled_from(ITEMS), max_size=40), st.integers(1, 50), st.data())
def test_every_run_comes_once_and_few_are_held(items: list[dict[str, Any]], window: int, data: st.DataObject) -> None:
    """Whatever runs in between: each run exactly once, by windows, and never more taken from the input than one."""
    taken = 0

    def source() -> Iterator[Run]:
        nonlocal taken
        for run in runs_of(ask, items):
            taken += 1
            yield run

    given_out: list[int] = []
    for run in in_prefix_order(source(), window=window):
        assert isinstance(run, Run)
        assert taken - len(given_out) <= window
        assert run.place // window == len(given_out) // window
        given_out.append(run.place)
        if data.draw(st.integers(0, 4)) == 0:
            run.run_kept()
    assert sorted(given_out) == list(range(len(items)))


def test_endless_input() -> None:
    """Runs are taken a window at a time."""
    endless = (run for _ in itertools.count() for run in runs_of(ask, ITEMS[:7]))
    places = [task.place for task in itertools.islice(in_prefix_order(endless, window=7), 21)]
    assert [sorted(places[start : start + 7]) for start in (0, 7, 14)] == [list(range(7))] * 3


def test_the_next_window_goes_on_where_the_last_one_ended() -> None:
    """The document of the last run of a window is the first of the next one."""
    items = [{"question": question, "document": document} for document in DOCUMENTS for question in QUESTIONS]
    random.Random(4).shuffle(items)
    ordered = [items[place] for place in places_of(runs_of(ask, items), window=20)]
    for start in (20, 40):
        left = [item["document"] for item in ordered[start : start + 20]]
        if ordered[start - 1]["document"] in left:
            assert left[0] == ordered[start - 1]["document"]


@dataclass
class Source:
    """An argument of the user's own type."""

    text: str
    tags: list[str]

    @property
    def trap(self) -> str:
        raise AssertionError("code of an argument ran")

    def __repr__(self) -> str:
        raise AssertionError("code of an argument ran")

    def __getattr__(self, name: str) -> str:
        raise AssertionError("code of an argument ran")


class Words(list[str]):
    """A list that minds being read."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("code of an argument ran")


class Level(enum.IntEnum):
    """A number with a name."""

    LOW = 1


class Slotted:
    """An argument whose members cannot be seen."""

    __slots__ = ()


def test_arguments_of_all_kinds() -> None:
    """Texts inside of lists, dicts and objects are found; objects that hold themselves end; no code of theirs runs."""
    cycle: list[Any] = [DOCUMENTS[0]]
    cycle.append(cycle)
    kinds: list[Any] = [
        [{"role": "user", "content": DOCUMENTS[0]}],
        Source(DOCUMENTS[1], ["a", "b"]),
        cycle,
        Slotted(),
        {"a": {"b": (DOCUMENTS[2], 3, None, 2.5, b"bytes")}},
        Words([DOCUMENTS[3]]),
        OrderedDict(text=DOCUMENTS[4]),
        Level.LOW,
        7,
    ]
    items = [{"document": kind, "question": "?"} for _ in range(3) for kind in kinds]
    ordered = [place % len(kinds) for place in places_of(runs_of(ask, items))]
    for kind in (0, 1, 2, 4, 5, 6):
        spots = [spot for spot, other in enumerate(ordered) if other == kind]
        assert spots == list(range(spots[0], spots[0] + 3))


def test_a_window_must_be_at_least_one() -> None:
    """Zero is refused where it is given."""
    with pytest.raises(ValueError, match="window must be at least 1, not 0"):
        in_prefix_order(iter(()), window=0)


# -- batches -----------------------------------------------------------------------------------------------------------


def documents_asked_for(backend: pt.MockBackend) -> list[str]:
    """The documents of a mock's calls, in the order in which they began."""
    return [call.prompt.splitlines()[1] for call in backend.calls]


def test_a_batch_begins_in_prefix_order() -> None:
    """Items of a list begin by document, and the states come in the items' order."""
    items = shuffled()
    backend = pt.MockBackend(lambda prompt, node: prompt.splitlines()[-1])
    states = ask.run_batch(items, backend=backend, num_threads=1)
    assert len(list(itertools.groupby(documents_asked_for(backend)))) == len(DOCUMENTS)
    assert [state["answer"] for state in states] == [item["question"] for item in items]


def test_the_given_order_can_be_kept() -> None:
    """With order="given", and for items that are taken one by one, programs begin as the items come."""
    items = shuffled()
    expected = [item["document"] for item in items]
    for source, order in ((items, "given"), (iter(items), "prefix")):
        backend = pt.MockBackend({"": "yes"})
        states = ask.run_batch(source, backend=backend, num_threads=1, generator_style=True, order=order)  # type: ignore[call-overload]  # one of the two
        assert len(list(states)) == len(items)
        assert documents_asked_for(backend) == expected


def test_a_list_of_states_is_made_in_prefix_order_whatever_the_items_are() -> None:
    """All items are taken before any runs, those of an iterator too."""
    backend = pt.MockBackend({"": "yes"})
    ask.run_batch(iter(shuffled()), backend=backend, num_threads=1)
    assert len(list(itertools.groupby(documents_asked_for(backend)))) == len(DOCUMENTS)


def test_a_wrong_order_is_named() -> None:
    """Anything but the two is refused before anything runs."""
    with pytest.raises(ValueError, match=r"order must be .*, not 'random'"):
        ask.run_batch([], backend=BACKEND, order="random")  # type: ignore[call-overload]  # that is what it refuses
