"""Keeps text that spells special tokens apart from the template that is rendered around it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_PRIVATE_USE = range(0xE000, 0xF900)


@dataclass(frozen=True, slots=True)
class TemplateSpan:
    """Part of a rendered conversation. Only `template` text may spell special tokens."""

    text: str
    template: bool


class SpecialTexts:
    """The texts of a model's special tokens, as something to look for."""

    def __init__(self, special_tokens: tuple[str, ...]) -> None:
        tokens = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._whole = "|".join(map(re.escape, tokens))
        self._pattern = re.compile(self._whole) if tokens else None
        self._beginnings = {token[:length] for token in tokens for length in range(1, len(token))}
        self._first_chars = frozenset(token[0] for token in tokens)
        self._longest = max(map(len, self._beginnings), default=0)

    def begin_in(self, text: str) -> bool:
        """Whether a special token may begin somewhere in the text; most texts are done with this."""
        return any(map(text.__contains__, self._first_chars))

    def dangers(self, text: str) -> list[str]:
        """What of a text could become a special token in a rendering.

        These are the tokens that it spells, and an end that a token begins with: the text behind it, a template's or
        another message's, could complete that.
        """
        found = self._pattern.findall(text) if self._pattern is not None else []
        return [*found, end] if (end := self._open_end(text)) else found

    def parted(self, text: str, markers: Mapping[str, str]) -> str:
        """The text with a marker in the place of each of its dangers."""
        end = self._open_end(text)
        body = text[: len(text) - len(end)]
        if self._pattern is not None:
            body = self._pattern.sub(lambda match: markers[match.group()], body)
        return body + markers[end] if end else body

    def _open_end(self, text: str) -> str:
        tail = text[-self._longest :] if self._longest else ""
        if not any(map(tail.__contains__, self._first_chars)):
            return ""
        ends = (tail[place:] for place, character in enumerate(tail) if character in self._first_chars)
        return next((end for end in ends if end in self._beginnings), "")


class Disguise:
    """Stands a private-use character in for each dangerous piece of what a template is given, keys included.

    A template that trims or searches its contents sees these characters instead; nothing else changes for it.
    """

    def __init__(self, specials: SpecialTexts, values: Any) -> None:
        self._specials = specials
        self._markers: dict[str, str] = {}
        texts: list[str] = []
        _gather(values, texts)
        if not specials.begin_in("\0".join(texts)):
            return
        dangers = dict.fromkeys(danger for text in texts for danger in specials.dangers(text))
        if dangers:
            unused = _unused(texts)
            self._markers = {danger: next(unused) for danger in dangers}

    def put_on(self, value: Any) -> Any:
        """The value without dangers."""
        return _mapped(value, lambda text: self._specials.parted(text, self._markers)) if self._markers else value

    def take_off(self, rendered: str) -> tuple[TemplateSpan, ...]:
        """The rendering as it was meant, in spans."""
        if not self._markers:
            return (TemplateSpan(rendered, template=True),) if rendered else ()
        meant = {marker: danger for danger, marker in self._markers.items()}
        parts = re.split(f"([{''.join(meant)}])", rendered)
        spans = (TemplateSpan(meant.get(part, part), part not in meant) for part in parts)
        return tuple(span for span in spans if span.text)


def _unused(texts: list[str]) -> Iterator[str]:
    """Private-use characters that none of the texts holds."""
    taken = {character for text in texts for character in text if ord(character) in _PRIVATE_USE}
    return (chr(code) for code in _PRIVATE_USE if chr(code) not in taken)


def _gather(value: Any, texts: list[str]) -> None:
    """Collect all strings of a JSON value, keys too. The body's parser has bounded how deep it is."""
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, Mapping):
        texts += value.keys()
        for each in value.values():
            _gather(each, texts)
    elif isinstance(value, list):
        for each in value:
            _gather(each, texts)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(each, change) for key, each in value.items()}
    return [_mapped(each, change) for each in value] if isinstance(value, list | tuple) else value
