"""The `source` of a grammar, read again: it may have come over a wire, where no class method has built it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from .errors import GrammarError, GrammarLimitError
from .grammar import Grammar, GrammarKind

_SHOWN = 60


def read_source(source: str, what: str) -> Any:
    """The value that `source` spells as JSON.

    Args:
        what: names the grammar in errors, such as "an EBNF grammar".

    Raises:
        GrammarError: it is not JSON.
        GrammarLimitError: it is nested too deeply.
    """
    try:
        return json.loads(source)
    except RecursionError:
        raise GrammarLimitError(f"the source of {what} is nested too deeply to be read") from None
    except json.JSONDecodeError as error:
        shown = source if len(source) <= _SHOWN else source[:_SHOWN] + "..."
        reason = f"{error.msg[:1].lower()}{error.msg[1:]} at character {error.pos}"
        raise GrammarError(f"the source of {what} must be JSON, not {shown!r}: {reason}") from None
    except ValueError:
        raise GrammarError(f"the source of {what} holds a number with too many digits to be read") from None


def read_members(source: str, what: str, *names: str) -> Mapping[str, Any]:
    """The object that `source` spells, which has `names` for members.

    Raises:
        GrammarError: it is no such object.
        GrammarLimitError: it is nested too deeply.
    """
    value = read_source(source, what)
    if not isinstance(value, Mapping) or not value.keys() >= set(names):
        shown = ", ".join(map(repr, names))
        raise GrammarError(f"the source of {what} must be a JSON object with {shown}, not {_shown(value)}")
    return value


def read_grammar(value: object, what: str) -> Grammar:
    """The grammar that a list of its kind, source and perhaps options writes.

    Raises:
        GrammarError: it is no such list.
    """
    is_list = isinstance(value, list) and 2 <= len(value) <= 3 and all(isinstance(part, str) for part in value)
    if not is_list or value[0] not in get_args(GrammarKind):  # type: ignore[index]  # which is a list here
        kinds = ", ".join(get_args(GrammarKind))
        raise GrammarError(
            f"{what} must be a list of a kind ({kinds}), a source and perhaps options, not {_shown(value)}"
        )
    return Grammar(*value)  # type: ignore[misc]  # checked above


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
