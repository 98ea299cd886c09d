"""Token ids to text as they come: whole characters only, and never a part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class OutputText:
    """The text of one request's output.

    Bytes of all tokens are joined and decoded as UTF-8, with replacement characters where they are not UTF-8: exactly
    what `bytes.decode(errors="replace")` gives for the whole. Special tokens have no bytes and are skipped.

    Text that may still become a stop string is held back, so what was shown never has to be taken back. A stop string
    ends the text before itself. When one token completes several, the one that starts first wins; of those that start
    together, the one that is first in the list.
    """

    def __init__(self, token_bytes: Sequence[bytes | None], stop: Sequence[str] = ()) -> None:
        """Begin an empty text.

        Args:
            token_bytes: exact bytes of each token; None for special tokens.
            stop: strings before which the text ends; none may be empty.
        """
        if not all(stop):
            raise ValueError(f"stop strings must not be empty: {list(stop)!r}")
        self.matched: str | None = None
        """The stop string that ended the text."""
        self._token_bytes = token_bytes
        self._stop = tuple(stop)
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
            may_stop: False where the text must not end yet (a grammar is incomplete): a stop string that this token
                completes is then ordinary text.
        """
        if self.matched is not None:
            return ""
        self._token_ids.append(token_id)
        decoded = self._decoder.decode(self._bytes_of(token_id))
        within_character = bool(self._decoder.getstate()[0])
        self._ends.append(None if within_character else self._shown_chars + len(self._held) + len(decoded))
        return self._show(decoded, may_stop=may_stop)

    def finish(self) -> str:
        """End the text and return what was held back; nothing after a match or a second call."""
        if self.matched is not None:
            return ""
        shown = self._show(self._decoder.decode(b"", final=True), may_stop=True)
        rest = self._held
        self._held = ""
        self._append(rest)
        return shown + rest

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

    def _show(self, decoded: str, *, may_stop: bool) -> str:
        """Move new text behind the held-back text, and show what cannot become a stop string."""
        if not decoded:
            return ""
        if not self._stop:
            self._append(decoded)
            return decoded
        pending = self._held + decoded
        cut = self._first_match(pending, len(self._held)) if may_stop else None
        if cut is None:
            cut = self._held_from(pending)
            self._held = pending[cut:]
        else:
            self._held = ""
        self._append(pending[:cut])
        return pending[:cut]

    def _append(self, text: str) -> None:
        if text:
            self._shown.append(text)
            self._shown_chars += len(text)

    def _first_match(self, pending: str, held: int) -> int | None:
        """Where the winning stop string starts in `pending`; it becomes `matched`.

        It ends behind the first `held` characters: one that ends within them was ordinary text when it came.
        """
        starts = [pending.find(stop, max(0, held - len(stop) + 1)) for stop in self._stop]
        found = [(start, order) for order, start in enumerate(starts) if start >= 0]
        if not found:
            return None
        start, order = min(found)
        self.matched = self._stop[order]
        return start

    def _held_from(self, pending: str) -> int:
        """Where the longest end of `pending` starts that a stop string goes on from; its length where there is none."""
        for start in range(max(0, len(pending) - self._longest_held), len(pending)):
            if pending[start] in self._first_chars:
                end = pending[start:]
                if any(len(stop) > len(end) and stop.startswith(end) for stop in self._stop):
                    return start
        return len(pending)
