"""Finds the special tokens that template text spells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any


class SpecialTokens:
    """The special tokens of a tokenizer.

    Attributes:
        ids: by their texts.
        texts: by their ids.
    """

    def __init__(self, added_tokens: Sequence[dict[str, Any]]) -> None:
        """Take the special ones among the `added_tokens` of a tokenizer.json."""
        # the longest first, as one may begin as another does
        tokens = sorted((token for token in added_tokens if token["special"]), key=lambda t: -len(t["content"]))
        self.ids: dict[str, int] = {token["content"]: token["id"] for token in tokens}
        self.texts: dict[int, str] = {token_id: text for text, token_id in self.ids.items()}
        self._in_order = [token["id"] for token in tokens]
        self._pattern = re.compile("|".join(map(_group, tokens))) if tokens else None

    def split(self, text: str) -> Iterator[str | int]:
        """A text as ordinary strings and ids of special tokens, in turn."""
        place = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            assert match.lastindex is not None
            yield text[place : match.start()]
            yield self._in_order[match.lastindex - 1]
            place = match.end()
        yield text[place:]


def _group(token: dict[str, Any]) -> str:
    """Matches a token and the spaces that it swallows; a single word, only where no letter adjoins it."""
    spelled = re.escape(token["content"])
    if token.get("single_word"):
        spelled = rf"(?<!\w){spelled}(?!\w)"
    before, after = (r"\s*" if token.get(side) else "" for side in ("lstrip", "rstrip"))
    return f"({before}{spelled}{after})"
