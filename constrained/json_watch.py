"""Where what is in progress in a memory may still become one of those that must not come again."""

from __future__ import annotations

from functools import lru_cache

from .json_equality import alike_number, may_become, stem
from .json_follow import BACKSLASH, BETWEEN, ESCAPED, KEY, KEY_ESCAPE, QUOTE, SCALAR, SKIP, SKIP_ESCAPE, STRING, Memory

_LETTERS = {says: letter for letter, says in ESCAPED.items()}


def may_repeat(memory: Memory) -> bool:
    """Whether the key or value in progress, or the next one, may still become one that must not come again."""
    frame, mode, text, escape = memory
    if frame is None or mode in (SKIP, SKIP_ESCAPE):
        return False
    if mode == BETWEEN:
        return bool(frame.expected or frame.candidates or frame.keys)
    if mode in (KEY, KEY_ESCAPE):
        return any(name.startswith(text) for name in frame.names())
    if mode == STRING:
        if escape or stem(text) != text:
            return bool(_escapes_to_watch(memory))
        return any((value.string() or b"").startswith(text) for value in frame.expected if value.kind == "string")
    return any(may_become(text, value) for value in frame.expected)


def alike(memory: Memory) -> Memory:
    """A memory that stands for `memory` where only the existence of an ending counts: see `alike_number`."""
    return memory._replace(text=alike_number(memory.text)) if memory.mode == SCALAR else memory


def bytes_to_watch(memory: Memory) -> frozenset[int] | None:
    """Bytes after which `may_repeat` may still hold; None for any byte."""
    frame, mode, text, escape = memory
    if frame is None or mode in (SCALAR, KEY_ESCAPE):
        return None
    if mode == BETWEEN:
        return None if frame.expected or frame.candidates else frozenset(b'", \t\r\n')
    if mode == KEY:
        return frozenset(_next_byte(word, len(text)) for word in words_to_watch(memory))
    if escape:
        return frozenset(spelled[len(escape)] for spelled in _escapes_to_watch(memory))
    if stem(text) != text:
        return frozenset((BACKSLASH,))
    return frozenset(_next_byte(word, len(text)) for word in words_to_watch(memory)) | {BACKSLASH}


def _escapes_to_watch(memory: Memory) -> set[bytes]:
    """Escapes that begin as the one in progress and go on with a string that matters."""
    _, _, text, escape = memory
    whole = stem(text)
    size, begun = len(whole), len(escape)
    words = words_to_watch(memory._replace(text=whole))
    following = {_first_character(word[size : size + 4]) for word in words if size < len(word)}
    return {
        spelled
        for char in following
        for spelled in _escapes(char, text[size:])
        if begun < len(spelled) and spelled[:2].startswith(escape[:2]) and spelled[:begun].lower() == escape.lower()
    }


def _first_character(text: bytes) -> str:
    size = 1 if text[0] < 0x80 else 2 if text[0] < 0xE0 else 3 if text[0] < 0xF0 else 4
    return text[:size].decode("utf-8", "surrogatepass")


@lru_cache(maxsize=4096)
def _escapes(char: str, half: bytes) -> tuple[bytes, ...]:
    """Escapes that go on with `char`, of which the first `half` of a surrogate pair was spelled, or nothing yet."""
    units = char.encode("utf-16-be", "surrogatepass")
    if half and (len(units) < 4 or chr(int.from_bytes(units[:2])).encode("utf-8", "surrogatepass") != half):
        return ()
    unit = units[2:] if half else units[:2]
    digits = unit.hex()
    spelled = [b"\\u" + digits.encode(), b"\\u" + digits.upper().encode()]
    if len(unit) == 2 and unit[0] == 0 and unit[1] in _LETTERS:
        spelled.append(bytes((BACKSLASH, _LETTERS[unit[1]])))
    return tuple(spelled) if unit else ()


def words_to_watch(memory: Memory) -> list[bytes]:
    """What the key or string in progress may become and matter: with `text` at the beginning."""
    frame, mode, text, _ = memory
    assert frame is not None
    if mode == KEY:
        return [name for name in frame.names() if name.startswith(text)]
    strings = (value.string() for value in frame.expected)
    return [string for string in strings if string is not None and string.startswith(text)]


def _next_byte(text: bytes, index: int) -> int:
    return text[index] if index < len(text) else QUOTE
