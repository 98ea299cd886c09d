"""Token ids to text as they come: whole characters only, and never a part of a stop string or of a pattern's match."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from .messages import RequestOutput, StepOutput

if TYPE_CHECKING:
    from palmette.constrained.stop_pattern import Match, StopPatterns, StopSearch


class UnreadText:
    """The output of a request whose text the scheduler need not look at, since no stop string can end it.

    It has the methods of `OutputText`, and shows nothing: its text is made from the tokens by a `Detokenizer`.
    """

    __slots__ = ("num_tokens",)

    matched: str | None = None

    def __init__(self) -> None:
        self.num_tokens = 0

    def push(self, token_id: int, *, may_stop: bool = True) -> str:
        """Count one more token."""
        self.num_tokens += 1
        return ""

    def finish(self, *, may_stop: bool = True) -> str:
        """Nothing was held back."""
        return ""

    def dropped_bytes(self, token_id: int) -> int | None:
        """No token stops it."""
        return None


class OutputText:
    """The text of one request's output.

    Bytes of all tokens are joined and decoded as UTF-8, with replacement characters where they are not UTF-8: exactly
    what `bytes.decode(errors="replace")` gives for the whole. Special tokens have no bytes and are skipped.

    Text that may still become a stop string or match a stop pattern is held back, so what was shown never has to be
    taken back. Either ends the text before itself. When one token completes several, the one that starts first wins; of
    those that start together, the string that is first in the list, then the pattern.
    """

    def __init__(
        self, token_bytes: Sequence[bytes | None], stop: Sequence[str] = (), patterns: StopPatterns | None = None
    ) -> None:
        """Begin an empty text.

        Args:
            token_bytes: exact bytes of each token; None for special tokens.
            stop: strings before which the text ends; none may be empty.
            patterns: patterns before whose first match the text ends.
        """
        if not all(stop):
            raise ValueError(f"stop strings must not be empty: {list(stop)!r}")
        self.matched: str | None = None
        """The stop string that ended the text, or what a stop pattern matched."""
        self._token_bytes = token_bytes
        self._stop = tuple(stop)
        self._search = patterns.search() if patterns is not None else None
        self._longest_held = max((len(each) for each in self._stop), default=1) - 1
        self._first_chars = frozenset(each[0] for each in self._stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._shown: list[str] = []
        self._shown_chars = 0
        self._held = ""
        self._token_ids: list[int] = []
        self._ends: list[int | None] = []  # characters after each token; None where it ends within a character

    @property
    def text(self) -> str:
        """All text shown so far."""
        if len(self._shown) > 1:
            self._shown = ["".join(self._shown)]
        return self._shown[0] if self._shown else ""

    def push(self, token_id: int, *, may_stop: bool = True) -> str:
        """Take one more token and return the text that may be shown now: often none, never after a match.

        Args:
            token_id: a special or unknown id adds no text.
            may_stop: False where the text must not end yet (a grammar is incomplete): a stop string or match that this
                token completes is then ordinary text.

        Raises:
            GrammarLimitError: a stop pattern has met its limits in this text.
        """
        if self.matched is not None:
            return ""
        self._token_ids.append(token_id)
        decoded = self._decoder.decode(self._bytes_of(token_id))
        within_character = bool(self._decoder.getstate()[0])
        self._ends.append(None if within_character else self._shown_chars + len(self._held) + len(decoded))
        return self._show(decoded, may_stop=may_stop)

    def finish(self, *, may_stop: bool = True) -> str:
        """End the text and return what was held back; nothing after a match or a second call.

        Args:
            may_stop: as for `push`; a pattern that needs the end of the text is found only here.
        """
        if self.matched is not None:
            return ""
        shown = self._show(self._decoder.decode(b"", final=True), may_stop=may_stop)
        match = self._search.finish() if may_stop and self._search is not None and self.matched is None else None
        rest, self._held = self._held, ""
        if match is not None:
            cut, self.matched = self._place_of(match, rest)
            rest = rest[:cut]
        self._append(rest)
        return shown + rest

    def dropped_bytes(self, token_id: int) -> int | None:
        """How many bytes the text would lose at its end if `token_id` came next and might stop it; None for no stop.

        The bytes of the token count as a part of the text. Nothing changes.
        """
        if not self._may_match:
            return None
        data = self._decoder.getstate()[0] + self._bytes_of(token_id)
        decoded, used = codecs.utf_8_decode(data, "replace", False)
        pending = self._held + decoded
        found = self._first_match(pending, self._search.copy() if self._search is not None else None)
        return None if found is None else len(pending[found[0] :].encode()) + len(data) - used

    @property
    def num_tokens(self) -> int:
        """Tokens taken."""
        return len(self._token_ids)

    @property
    def kept_ids(self) -> tuple[tuple[int, ...], str]:
        """The tokens of the text, for what continues it: meaningful after a match or `finish`.

        Returns:
            The longest run of first tokens whose text is wholly in `text`, and the rest of `text`: what is left of
            a token that a stop string's cut went through, "" where the cut fell between two tokens.
        """
        if self.matched is None:
            return tuple(self._token_ids), ""
        for count in range(len(self._ends), 0, -1):
            end = self._ends[count - 1]
            if end is not None and end <= self._shown_chars:
                return tuple(self._token_ids[:count]), self.text[end:]
        return (), self.text

    def _bytes_of(self, token_id: int) -> bytes:
        known = 0 <= token_id < len(self._token_bytes)
        return (self._token_bytes[token_id] if known else None) or b""

    @property
    def _may_match(self) -> bool:
        return bool(self._stop) or self._search is not None

    def _show(self, decoded: str, *, may_stop: bool) -> str:
        """Move new text behind the held-back text, and show what cannot become a stop."""
        if not decoded:
            return ""
        if not self._may_match:
            self._append(decoded)
            return decoded
        pending = self._held + decoded
        found = self._first_match(pending, self._search, may_stop=may_stop)
        if found is None:
            cut = self._held_from(pending)
            self._held = pending[cut:]
        else:
            cut, self.matched = found
            self._held = ""
        self._append(pending[:cut])
        return pending[:cut]

    def _append(self, text: str) -> None:
        if text:
            self._shown.append(text)
            self._shown_chars += len(text)

    def _first_match(self, pending: str, search: StopSearch | None, *, may_stop: bool = True) -> tuple[int, str] | None:
        """Where the winning stop starts in `pending`, and what it is.

        It ends behind the text that is held: one that ends within was ordinary text when it came. `search` takes the
        text behind that.
        """
        found = self._first_string(pending) if may_stop else None
        match = search.push(pending[len(self._held) :], may_match=may_stop) if search is not None else None
        if match is None:
            return found
        of_pattern = self._place_of(match, pending)
        return of_pattern if found is None or of_pattern[0] < found[0] else found

    def _first_string(self, pending: str) -> tuple[int, str] | None:
        held = len(self._held)
        starts = [pending.find(stop, max(0, held - len(stop) + 1)) for stop in self._stop]
        found = [(start, order) for order, start in enumerate(starts) if start >= 0]
        if not found:
            return None
        start, order = min(found)
        return start, self._stop[order]

    def _place_of(self, match: Match, pending: str) -> tuple[int, str]:
        """Where a pattern's match starts in text that is not shown, and its text."""
        start, end = match.start - self._shown_chars, match.end - self._shown_chars
        return start, pending[start:end]

    def _held_from(self, pending: str) -> int:
        """Where the part of `pending` begins that may still become a stop; its length where there is none."""
        string = self._string_from(pending)
        return string if self._search is None else min(string, self._search.safe - self._shown_chars)

    def _string_from(self, pending: str) -> int:
        """Where the longest end of `pending` starts that a stop string goes on from; its length where there is none."""
        for start in range(max(0, len(pending) - self._longest_held), len(pending)):
            if pending[start] in self._first_chars:
                end = pending[start:]
                if any(len(stop) > len(end) and stop.startswith(end) for stop in self._stop):
                    return start
        return len(pending)


class Detokenizer:
    """Makes text of the token ids in a scheduler's news, for requests whose text the scheduler has not read.

    Args:
        token_bytes: exact bytes of each token; None for special tokens.
    """

    def __init__(self, token_bytes: Sequence[bytes | None]) -> None:
        self._token_bytes = token_bytes
        self._streams: dict[str, _TextStream] = {}  # of requests that were heard of and have not ended

    def process(self, step: StepOutput) -> StepOutput:
        """The same news with all of its text."""
        return StepOutput(tuple(self._with_text(output) for output in step.outputs))

    def _with_text(self, output: RequestOutput) -> RequestOutput:
        end = output.end
        if output.text is not None or (end is not None and end.text is not None):
            return output
        stream = self._streams.get(output.id) or _TextStream()
        text = stream.push(b"".join(map(self._bytes_of, output.token_ids)), final=end is not None)
        if end is None:
            self._streams[output.id] = stream
        else:
            self._streams.pop(output.id, None)
            end = msgspec.structs.replace(end, text=stream.text)
        return RequestOutput(output.id, output.token_ids, text, output.logprobs, end)

    def _bytes_of(self, token_id: int) -> bytes:
        known = 0 <= token_id < len(self._token_bytes)
        return (self._token_bytes[token_id] if known else None) or b""


class _TextStream:
    """The text of one output, as far as it has come."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def push(self, data: bytes, *, final: bool) -> str:
        """Take more bytes; returns the text that they complete."""
        text = self._decoder.decode(data, final)
        self._pieces.append(text)
        return text
