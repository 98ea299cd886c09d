"""The order in which the programs of a batch begin: those whose prompts share a prefix next to each other.

What a program's prompt begins with is known only once it runs, and to run it twice would do twice what it does besides.
So the order goes by the arguments: equal ones, and those that begin alike, are the text that prompts have in common. In
which order they stand in the prompt is seen in the first programs of the batch that have begun; until then those that
have most in common come first (docs/decisions/0021).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .batch_flow import Task
from .compiling import leading_text
from .prefix_order import Key, depth_first, shared_in_all
from .run import Run

WINDOW = 4096
"""Most tasks that are taken from the input ahead of their turn."""

_WATCHED = 4  # runs that have been handed out and may yet show where their arguments stand
_PARTS = 64  # texts of one argument that are looked at
_LONG = 16  # characters of a text that stands nowhere in a prompt by chance


def in_prefix_order(tasks: Iterator[Task], *, window: int = WINDOW) -> Iterator[Task]:
    """The tasks in the order to begin them. Each comes exactly once.

    Take one when it can begin, not sooner: the order of those that are left is improved by what the first ones append.
    At most `window` tasks are held; those of one window come before those of the next, and of one window first those
    that need not run.

    Args:
        window: 1 leaves the order as it is.

    Raises:
        ValueError: `window` is less than 1.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, not {window}")
    return _windows(tasks, window)


def _windows(tasks: Iterator[Task], window: int) -> Iterator[Task]:
    prompts = _Prompts()
    last: Run | None = None
    while taken := list(itertools.islice(tasks, window)):
        yield from (task for task in taken if not isinstance(task, Run))
        waiting = prompts.ordered(last, [task for task in taken if isinstance(task, Run)])[::-1]
        del taken
        while waiting:
            last = waiting.pop()
            yield last
            if prompts.have_shown_more(last):
                waiting = prompts.ordered(last, waiting[::-1])[::-1]


class _Prompts:
    """What is known of where arguments stand in prompts."""

    def __init__(self) -> None:
        self._watched: list[Run] = []
        self._known: list[str] | None = None  # arguments in the order of the prompt

    def have_shown_more(self, begun: Run) -> bool:
        """Whether one of the runs that were handed out shows the order of the arguments, for the first time."""
        if self._known is not None:
            return False
        if len(self._watched) < _WATCHED:
            self._watched.append(begun)
        shown = next((text_and_run for run in self._watched if (text_and_run := _prompt_of(run))), None)
        if shown is None:
            return False
        self._known = _order_in(*shown)
        self._watched.clear()
        return True

    def ordered(self, last: Run | None, runs: list[Run]) -> list[Run]:
        """These runs, first those that share a prefix with the `last` one before them."""
        all_runs = runs if last is None else [last, *runs]
        texts = [{name: _texts(value) for name, value in run.arguments.items()} for run in all_runs]
        names = self._names(texts)
        keys = [tuple(itertools.chain.from_iterable(each.get(name, ()) for name in names)) for each in texts]
        return [all_runs[place] for place in depth_first(keys) if all_runs[place] is not last]

    def _names(self, texts: Sequence[Mapping[str, Key]]) -> list[str]:
        """All arguments: as they stand in the prompt where that is known, then those that have most in common."""
        names = dict.fromkeys(name for each in texts for name in each)
        known = [name for name in self._known or () if name in names]
        shared = {name: shared_in_all([each.get(name, ()) for each in texts]) for name in names if name not in known}
        return known + sorted(shared, key=lambda name: -shared[name])


def _prompt_of(run: Run) -> tuple[str, Run] | None:
    """What a run's prompt begins with, once that is known; None before."""
    execution = run.state._execution
    with execution.changed:
        records = list(execution.tree.records)
        known = execution.ended or execution.tree.unfinished
    return (leading_text(records), run) if known else None


def _order_in(prompt: str, run: Run) -> list[str]:
    """The arguments of a run that stand in its prompt, in their order there."""
    places = {name: _place_in(prompt, _texts(value)) for name, value in run.arguments.items()}
    found = {name: place for name, place in places.items() if place is not None}
    return sorted(found, key=found.__getitem__)


def _place_in(prompt: str, texts: Key) -> int | None:
    """Where the first of an argument's texts stands in the prompt. A short one must stand there once and as a word."""
    places = []
    for text in texts:
        if len(text) >= _LONG:
            places.append(prompt.find(text))
        elif text.strip():
            spots = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(text)}(?!\w)", prompt)]
            places.append(spots[0] if len(spots) == 1 else -1)
    return min((place for place in places if place >= 0), default=None)


def _texts(value: Any) -> Key:
    """The texts in an argument, in their order; of containers and objects those inside. None of their code runs."""
    texts: list[str] = []
    waiting = [value]
    while waiting and len(texts) < _PARTS:
        inner = waiting.pop()
        if isinstance(inner, str):
            texts.append(str.__str__(inner))
        elif type(inner) in _PLAIN:
            texts.append(repr(inner))
        elif isinstance(inner, list):
            waiting += list.__getitem__(inner, slice(_PARTS))[::-1]
        elif isinstance(inner, tuple):
            waiting += tuple.__getitem__(inner, slice(_PARTS))[::-1]
        elif (members := _members(inner)) is not None:
            pairs = itertools.islice(dict.items(members), _PARTS)
            waiting += list(itertools.chain.from_iterable(pairs))[::-1]
        else:
            texts.append(f"{type(inner).__name__} at {id(inner)}")
    return tuple(texts)


_PLAIN = (int, float, complex, bool, bytes, type(None))


def _members(value: object) -> dict[Any, Any] | None:
    """What a dict or a plain object holds."""
    if isinstance(value, dict):
        return value
    try:
        members = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return members if isinstance(members, dict) else None
