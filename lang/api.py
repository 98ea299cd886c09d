"""What programs are written with: `gen`, `select` and the roles. Arguments are checked here, at the user's line."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any, Unpack

from palmette.constrained.compiler import DEFAULT_LIMITS, lower
from palmette.constrained.errors import GrammarError
from palmette.constrained.grammar import Grammar
from palmette.constrained.limits import Deadline
from palmette.runtime.errors import RequestError
from palmette.runtime.program import SelectMethod

from .choices import SELECT_METHODS, token_length_normalized
from .expr import Expr, GenExpr, Reading, Role, RoleBegin, RoleEnd, SelectExpr, as_expr, joined
from .options import SamplingOptions, checked_options

INTEGER_PATTERN = "-?(?:0|[1-9][0-9]{0,17})"
"""What `gen_int` writes: a decimal integer of at most 18 digits, so that it fits 64 bits."""


def gen(
    name: str | None = None,
    *,
    n: int = 1,
    regex: str | None = None,
    json_schema: Any = None,
    choices: Sequence[str] | None = None,
    choices_method: SelectMethod = token_length_normalized,
    grammar: Grammar | None = None,
    **options: Unpack[SamplingOptions],
) -> Expr:
    """Text from the model, kept as the variable `name`.

    Args:
        name: what ``s[name]`` reads; None keeps the text in the branch only.
        n: answers to generate. With more than one, the variable is a list and the branch goes on with the first.
        regex: the text matches this pattern in full.
        json_schema: the text is JSON that validates: a mapping, JSON text or a Pydantic model class. Its value is text.
        choices: same as `select(name, choices)`; sampling options do not apply to it.
        choices_method: how `choices` are weighed.
        grammar: the text matches this grammar in full.
        options: sampling options, see `SamplingParams`. They win over the defaults of the program's `function`.

    Raises:
        TypeError: an option does not exist.
        RequestError: a value is out of its range, or two constraints were given.
        GrammarError: the constraint is not one, or uses a feature that is refused by name.
    """
    _check_name(name, "gen")
    given = _given(regex=regex, json_schema=json_schema, choices=choices, grammar=grammar)
    if choices is not None:
        if options or n != 1:
            ignored = [*(["n"] if n != 1 else []), *options]
            raise RequestError(f"gen(choices=...) scores every choice and samples none, so leave out {_names(ignored)}")
        return select(name, choices, choices_method=choices_method)
    if choices_method != token_length_normalized:
        raise RequestError("choices_method goes with choices=[...], which was not given")
    return _gen("gen", name, _grammar(given), n, "text", options)


def gen_int(name: str | None = None, *, n: int = 1, **options: Unpack[SamplingOptions]) -> Expr:
    """An integer of at most 18 digits from the model; ``s[name]`` is an `int`. Arguments are those of `gen`."""
    return _gen("gen_int", name, Grammar.regex(INTEGER_PATTERN), n, "int", options)


def gen_string(name: str | None = None, *, n: int = 1, **options: Unpack[SamplingOptions]) -> Expr:
    """A JSON string in double quotes from the model; ``s[name]`` is what the quotes hold. Arguments as `gen`'s."""
    return _gen("gen_string", name, Grammar.json_schema({"type": "string"}), n, "json_string", options)


def select(
    name: str | None,
    choices: Sequence[str],
    *,
    choices_method: SelectMethod = token_length_normalized,
) -> Expr:
    """The choice that the model finds likeliest here, kept as the variable `name`.

    Args:
        name: what ``s[name]`` reads.
        choices: non-empty, distinct strings. Each is scored whole; of equals the first wins.
        choices_method: `token_length_normalized`, `greedy_token_selection` or `unconditional_likelihood_normalized`.

    Raises:
        GrammarError: `choices` is not a list of non-empty, distinct strings.
        RequestError: `choices_method` does not exist.
    """
    _check_name(name, "select")
    Grammar.choices(choices)
    if choices_method not in SELECT_METHODS:
        raise RequestError(f"choices_method must be {_one_of(SELECT_METHODS)}, not {choices_method!r}")
    return SelectExpr(name, tuple(choices), choices_method)


def system(content: str | Expr) -> Expr:
    """A system message, in the model's own chat format."""
    return role_message("system", content)


def user(content: str | Expr) -> Expr:
    """A user message, in the model's own chat format."""
    return role_message("user", content)


def assistant(content: str | Expr) -> Expr:
    """An assistant message, in the model's own chat format; its content usually is or ends with a `gen`."""
    return role_message("assistant", content)


def system_begin() -> Expr:
    """Opens a system message that a later `system_end` closes."""
    return RoleBegin("system")


def system_end() -> Expr:
    """Closes the open system message."""
    return RoleEnd("system")


def user_begin() -> Expr:
    """Opens a user message that a later `user_end` closes."""
    return RoleBegin("user")


def user_end() -> Expr:
    """Closes the open user message."""
    return RoleEnd("user")


def assistant_begin() -> Expr:
    """Opens an assistant message that a later `assistant_end` closes."""
    return RoleBegin("assistant")


def assistant_end() -> Expr:
    """Closes the open assistant message."""
    return RoleEnd("assistant")


def role_message(role: Role, content: str | Expr) -> Expr:
    """A whole message of `role`."""
    return joined((RoleBegin(role), as_expr(content, f"{role}()"), RoleEnd(role)))


def _gen(
    where: str, name: str | None, grammar: Grammar | None, n: int, reading: Reading, options: SamplingOptions
) -> Expr:
    _check_name(name, where)
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise RequestError(f"n must be a whole number of at least 1, not {n!r}")
    return GenExpr(name, MappingProxyType(checked_options(options, f"{where}()")), grammar, n, reading)


def _check_name(name: object, where: str) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"the name of a {where}() must be a non-empty string or None, not {name!r}")


def _given(**constraints: Any) -> dict[str, Any]:
    """The one constraint that was given, if any."""
    given = {kind: value for kind, value in constraints.items() if value is not None}
    if len(given) > 1:
        raise RequestError(f"gen() takes one constraint, not {len(given)}: {_names(given)}")
    return given


def _grammar(given: dict[str, Any]) -> Grammar | None:
    if "regex" in given:
        return _legal(Grammar.regex(given["regex"]))
    if "json_schema" in given:
        return _legal(Grammar.json_schema(given["json_schema"]))
    grammar = given.get("grammar")
    if grammar is not None and not isinstance(grammar, Grammar):
        raise GrammarError(f"grammar must be a Grammar, such as Grammar.regex(...), not {grammar!r}")
    return None if grammar is None else _legal(grammar)


@functools.lru_cache(maxsize=1024)
def _legal(grammar: Grammar) -> Grammar:
    """`grammar` itself, once its front end has read it; the engine compiles it for its vocabulary later."""
    lower(grammar, DEFAULT_LIMITS, Deadline(DEFAULT_LIMITS))
    return grammar


def _names(values: Iterable[str]) -> str:
    return ", ".join(values)


def _one_of(names: Sequence[str]) -> str:
    return f"one of {', '.join(names)}"
