"""Reads tool calls out of an answer that comes in pieces."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .tool_json import JsonValueEnd, is_object, may_be_call, parsed_call
from .tool_syntax import SPACE, CallSyntax

_ID_CHARS = string.ascii_letters + string.digits
_CALL_ID = re.compile(r"\[CALL_ID\][a-zA-Z0-9_-]*$")


@dataclass(frozen=True, slots=True)
class ContentText:
    """More text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call has begun; `index` counts the calls of the answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


ToolEvent = ContentText | CallBegun | CallArguments


def new_call_id() -> str:
    """``call_`` and 24 random letters and digits."""
    return "call_" + "".join(secrets.choice(_ID_CHARS) for _ in range(24))


class ToolParser:
    """Calls and text of one answer. However the answer is cut into pieces, the joined events are the same.

    Text that may become a call is held back. A call that the grammar holds is given out as it comes. What only looks
    like one is a call once it is whole: JSON that names one of the functions and has an object of arguments; else it is
    text. White space around calls belongs to neither.

    Args:
        is_exact: a grammar holds the answer, so that what begins as it writes calls is one.
        begun: the function whose arguments the answer is from its start.
    """

    def __init__(
        self,
        syntax: CallSyntax,
        *,
        is_exact: bool,
        begun: str | None = None,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._syntax = syntax
        self._is_exact = is_exact
        self._begun = begun
        self._new_id = new_id
        self._pending = ""  # has not been given out; of a call, from where it begins
        self._before = ""  # what stood between text and call: given out as text if it is none
        self._state: Literal["text", "call", "arguments", "tail", "after"] = "arguments" if begun else "text"
        self._may_be_bare = syntax.bare
        self._is_kept = False  # the call was found by a string that is part of it
        self._is_opened = False  # the call was found by a string before it
        self._tail = ""
        self._value = JsonValueEnd()
        self._events: list[ToolEvent] = []
        self.calls = 0
        """How many calls have begun."""

    @property
    def is_within_call(self) -> bool:
        """Whether the arguments of the last call have not ended."""
        return self._state == "arguments"

    def push(self, text: str) -> list[ToolEvent]:
        """Take more of the answer, and return what it tells."""
        if self._begun is not None:
            self._begin(self._begun, 0)
            self._begun = None
        self._pending += text
        self._run()
        return self._taken()

    def finish(self) -> list[ToolEvent]:
        """The answer has ended: what was held back."""
        if self._begun is not None:
            self.push("")
        while self._state == "call":
            self._fail()
            self._run()
        if self._state == "text":
            self._text(self._before + self._pending)
        self._pending = self._before = ""
        return self._taken()

    def _taken(self) -> list[ToolEvent]:
        events, self._events = self._events, []
        return events

    def _run(self) -> None:
        steps = {
            "text": self._find_call,
            "call": self._read_call,
            "arguments": self._read_arguments,
            "tail": self._read_tail,
            "after": self._after_call,
        }
        while self._pending and steps[self._state]():
            pass

    # -- text ---------------------------------------------------------------------------------------------------------

    def _find_call(self) -> bool:
        if self._may_be_bare:
            return self._try_bare()
        found = [(place, text) for text in self._markers() if (place := self._pending.find(text)) >= 0]
        if not found:
            self._give_text(len(self._pending) - self._held())
            return False
        place, marker = min(found)
        self._give_text(place)
        self._open(marker)
        return True

    def _try_bare(self) -> bool:
        """Take what stands at the start, or behind a call, for a call until it shows that it is none."""
        text = self._pending.lstrip(SPACE)
        self._before += self._pending[: len(self._pending) - len(text)]
        self._pending = text
        opener = next((each for each in self._syntax.openers if text.startswith(each)), None)
        if not text or (opener is None and any(each.startswith(text) for each in self._syntax.openers)):
            return False
        self._may_be_bare = False
        self._open(opener or "")
        return True

    def _markers(self) -> tuple[str, ...]:
        return self._syntax.openers + self._syntax.kept

    def _held(self) -> int:
        """How many of the last characters may begin a call."""
        longest = max(map(len, self._markers())) - 1
        for size in range(min(longest, len(self._pending)), 0, -1):
            if any(marker.startswith(self._pending[-size:]) for marker in self._markers()):
                return size
        return 0

    def _give_text(self, size: int) -> None:
        """Give out the first `size` characters, but white space at their end is held back: a call may follow."""
        text, self._pending = self._before + self._pending[:size], self._pending[size:]
        kept = text.rstrip(SPACE)
        self._before = text[len(kept) :]
        self._text(kept)

    def _text(self, text: str) -> None:
        if text:
            self._events.append(ContentText(text))

    # -- a call up to its arguments -----------------------------------------------------------------------------------

    def _open(self, marker: str) -> None:
        self._is_kept = marker in self._syntax.kept
        self._is_opened = marker in self._syntax.openers
        if not self._is_kept:
            self._before += marker
            self._pending = self._pending[len(marker) :]
        self._value = JsonValueEnd()
        self._state = "call"

    def _fail(self) -> bool:
        """It is no call: go on behind what was taken for its beginning."""
        size = 1 if self._is_kept else 0
        self._text(self._before + self._pending[:size])
        self._before, self._pending = "", self._pending[size:]
        self._state = "text"
        return True

    def _read_call(self) -> bool:
        self._skip_lead()
        text = self._pending
        if not text:
            return False
        if self._is_exact:
            name = next((name for name, head in self._syntax.heads.items() if text.startswith(head + "{")), None)
            if name is not None:
                self._begin(name, len(self._syntax.heads[name]))
                return True
            if any((head + "{").startswith(text) for head in self._syntax.heads.values()):
                return False
        return self._read_named() if self._syntax.named else self._read_object()

    def _skip_lead(self) -> None:
        if self._value.scanned == 0:
            text = self._pending.lstrip(self._syntax.lead)
            self._before += self._pending[: len(self._pending) - len(text)]
            self._pending = text

    def _begin(self, name: str, head: int) -> None:
        self._events.append(CallBegun(self.calls, self._new_id(), name))
        self.calls += 1
        self._before, self._pending = "", self._pending[head:]
        self._value = JsonValueEnd()
        self._state = "arguments"

    def _read_object(self) -> bool:
        """A call in one JSON object that nothing holds to its form: it counts when it is whole."""
        if not may_be_call(self._pending):
            return self._fail()
        end = self._value.find(self._pending)
        if end is None:
            return False
        call = parsed_call(self._pending[:end], needs_arguments=not self._is_opened)
        if call is None or call[0] not in self._syntax.names:
            return self._fail()
        return self._give_whole(*call, end)

    def _read_named(self) -> bool:
        """The same of a name and its arguments."""
        head, brace, _ = self._pending.partition("{")
        name = _CALL_ID.sub("", head.strip(SPACE).removesuffix("[ARGS]"))
        if not brace and any(_goes_on(each, head) for each in self._syntax.names):
            return False
        if not brace or name not in self._syntax.names:
            return self._fail()
        if self._value.scanned == 0:
            self._value.scanned = len(head)
        end = self._value.find(self._pending)
        if end is None:
            return False
        arguments = self._pending[len(head) : end]
        return self._give_whole(name, arguments, end) if is_object(arguments) else self._fail()

    def _give_whole(self, name: str, arguments: str, end: int) -> bool:
        self._begin(name, end)
        self._events.append(CallArguments(self.calls - 1, arguments))
        self._state = "after"
        return True

    # -- arguments, and what follows them -----------------------------------------------------------------------------

    def _read_arguments(self) -> bool:
        end = self._value.find(self._pending)
        taken = len(self._pending) if end is None else end
        self._events.append(CallArguments(self.calls - 1, self._pending[:taken]))
        self._pending = self._pending[taken:]
        self._value.scanned = 0
        if end is not None:
            self._state, self._tail = "tail", self._syntax.tail
        return True

    def _read_tail(self) -> bool:
        while self._tail and self._pending.startswith(self._tail[0]):
            self._tail, self._pending = self._tail[1:], self._pending[1:]
        if not self._tail or self._pending:
            self._state = "after"
        return True

    def _after_call(self) -> bool:
        while (
            filler := next((each for each in self._syntax.fillers if self._pending.startswith(each)), None)
        ) is not None:
            self._pending = self._pending[len(filler) :]
        if any(each.startswith(self._pending) for each in self._syntax.fillers):
            return False  # nothing is left, or the beginning of a filler
        self._state, self._may_be_bare = "text", self._syntax.bare or bool(self._syntax.lead.strip())
        return True


def _goes_on(name: str, head: str) -> bool:
    """Whether `head` may become what stands between the start of a call of `name` and its arguments."""
    rest = head.removeprefix(name).strip(SPACE)
    if not head.startswith(name):
        return name.startswith(head)
    return not rest or any(rest.startswith(mark) or mark.startswith(rest) for mark in ("[ARGS]", "[CALL_ID]"))
