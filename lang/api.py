"""What programs are written with: `gen`, `select` and the roles. Arguments are checked here, at the user's line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Unpack

from palmette.constrained.grammar import Grammar
from palmette.runtime.errors import RequestError
from palmette.runtime.program import SelectMethod

from .chat_rendering import Role
from .choices import SELECT_METHODS, token_length_normalized
from .constraints import Constraint, constraint
from .expr import Expr, GenExpr, RoleBegin, RoleEnd, SelectExpr, as_expr, joined, parts
from .options import GenOptions, checked_options
from .reasoning import TAGS_OF_MODEL_TYPE, ThinkTags
from .tool import Tool
from .tool_answers import CHOICES, ToolChoice, ToolOffer


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    n: int | None = None,
    regex: str | None = None,
    json_schema: Any = None,
    type: Any = None,  # noqa: A002  the word that users look for
    dtype: Any = None,
    ebnf: str | None = None,
    lark: str | None = None,
    structural_tag: Any = None,
    choices: Sequence[str] | None = None,
    choices_method: SelectMethod | None = None,
    tools: Tool[..., Any] | Sequence[Any] | None = None,  # a list of unlike tools is a list[object] to a type checker
    tool_choice: ToolChoice | None = None,
    parallel_tool_calls: bool = False,
    grammar: Grammar | None = None,
    separate_reasoning: bool | tuple[str, str] = False,
    **options: Unpack[GenOptions],
) -> Expr:
    """Text from the model, kept as the variable `name`.

    At most one of the constraints (`regex` to `grammar`) may be given.

    Args:
        name: what ``s[name]`` reads; None keeps the text in the branch only.
        max_tokens: at most this many tokens are generated.
        n: answers to generate. With more than one, the variable is a list and the branch goes on with the first.
        regex: the text matches this pattern in full.
        json_schema: the text is JSON that validates. Of a mapping or JSON text the value is the text; of a type, as for
            `type`.
        type: the text is written as this Python type asks for and the value is of it: a Pydantic model, dataclass,
            TypedDict, `Literal`, `int`, ``list[...]``, a union, and so on. Objects hold no keys but their fields.
        dtype: SGLang's name for ``type`` with `int`, `float`, `bool`, `str`, or their names.
        ebnf: the text matches this grammar's rule ``root``; see `Grammar.ebnf`.
        lark: the text matches this grammar's rule ``start``; see `Grammar.lark`.
        structural_tag: free text in which tags hold structured parts; see `Grammar.structural_tag`.
        choices: same as `select(name, choices)`; sampling options do not apply to it.
        choices_method: how `choices` are weighed.
        tools: the text is a call of one of these, and the value a `ToolCall`.
        tool_choice: "required" is what `tools` says. With "auto" the model may also answer in words; the value is then
            a str.
        parallel_tool_calls: an answer may hold several calls, and the value is a list of `ToolCall`.
        grammar: the text matches this grammar in full: what `Grammar` makes, with options that are not here, such as
            ``Grammar.json_schema(schema, key_order="any")`` or ``Grammar.json_object()``.
        separate_reasoning: the model reasons first, between ``<think>`` and ``</think>`` or the two tags given: the
            variable is the answer after it, ``s[name + "_reasoning_content"]`` the reasoning. A constraint holds for
            the answer alone. The branch keeps the whole text.
        options: sampling options, see `SamplingParams`. They win over the defaults of the program's `function`.

    Raises:
        TypeError: an option does not exist, or a type cannot be written as JSON.
        RequestError: a value is out of its range, or two constraints were given.
        GrammarError: the constraint is not one, or uses a feature that is refused by name.
    """
    _check_name(name, "gen")
    held_to: dict[str, Any] = {"regex": regex, "json_schema": json_schema, "type": type, "dtype": dtype, "ebnf": ebnf}
    offer = _tool_offer(tools, tool_choice, parallel_tool_calls)
    held_to |= {"lark": lark, "structural_tag": structural_tag, "tools": offer, "grammar": grammar}
    sampling: dict[str, Any] = {"n": n, "max_tokens": max_tokens, **options}
    if choices is not None:
        _check_alone({**held_to, **sampling, "separate_reasoning": separate_reasoning or None})
        return select(name, choices, choices_method=choices_method or token_length_normalized)
    if choices_method is not None:
        raise RequestError("choices_method goes with choices=[...], which was not given")
    return _gen("gen", name, constraint(**held_to), sampling, _think_tags(separate_reasoning))


def gen_int(
    name: str | None = None, max_tokens: int | None = None, *, n: int | None = None, **options: Unpack[GenOptions]
) -> Expr:
    """An integer from the model; ``s[name]`` is an `int`. Same as ``gen(name, type=int)``; arguments are `gen`'s."""
    return _gen("gen_int", name, constraint(type=int), {"n": n, "max_tokens": max_tokens, **options})


def gen_string(
    name: str | None = None, max_tokens: int | None = None, *, n: int | None = None, **options: Unpack[GenOptions]
) -> Expr:
    """A JSON string in double quotes from the model; ``s[name]`` is what the quotes hold. Same as ``type=str``."""
    return _gen("gen_string", name, constraint(type=str), {"n": n, "max_tokens": max_tokens, **options})


def select(
    name: str | None = None,
    choices: Sequence[str] = (),
    temperature: float = 0.0,
    choices_method: SelectMethod = token_length_normalized,
) -> Expr:
    """The choice that the model finds likeliest here, kept as the variable `name`.

    Args:
        name: what ``s[name]`` reads.
        choices: non-empty, distinct strings. Each is scored whole; of equals the first wins.
        temperature: as in SGLang's `select`, where it does nothing either: choices are scored, not sampled.
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


def separate_reasoning(expr: Expr, model_type: str | None = None) -> Expr:
    """The generations of `expr` with reasoning and answer apart, as ``gen(separate_reasoning=True)`` has them.

    Args:
        expr: holds at least one `gen`.
        model_type: names the think tags as SGLang does: deepseek-r1, qwen3, kimi and so on; None is ``<think>``.

    Raises:
        TypeError: there is no generation in `expr`.
        RequestError: the model type is not known.
    """
    if model_type is not None and model_type not in TAGS_OF_MODEL_TYPE:
        raise RequestError(f"model_type must be {_one_of(sorted(TAGS_OF_MODEL_TYPE))}, not {model_type!r}")
    tags = TAGS_OF_MODEL_TYPE[model_type] if model_type else ThinkTags()
    pieces = parts(as_expr(expr, "separate_reasoning()"))
    if not any(isinstance(piece, GenExpr) for piece in pieces):
        raise TypeError(f"separate_reasoning() takes an expression with a gen(...) in it, not {expr!r}")
    return joined(replace(piece, think=tags) if isinstance(piece, GenExpr) else piece for piece in pieces)


def _gen(
    where: str, name: str | None, held_to: Constraint, sampling: dict[str, Any], think: ThinkTags | None = None
) -> Expr:
    _check_name(name, where)
    n = sampling.pop("n")
    n = 1 if n is None else n
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise RequestError(f"n must be a whole number of at least 1, not {n!r}")
    options = MappingProxyType(checked_options(sampling, f"{where}()"))
    grammar, reader = held_to
    return GenExpr(name, options, grammar, n, reader, think)


def _tool_offer(tools: Any, choice: ToolChoice | None, parallel: bool) -> ToolOffer | None:
    if tools is None:
        if choice is not None or parallel:
            raise RequestError("tool_choice and parallel_tool_calls go with tools=[...], which was not given")
        return None
    if choice not in (None, *CHOICES):
        hint = "; without tools=[...] none is called" if choice == "none" else ""  # type: ignore[comparison-overlap]  # OpenAI's
        raise RequestError(f"tool_choice must be {_one_of(CHOICES)}, not {choice!r}{hint}")
    return ToolOffer(tools, choice or "required", parallel=bool(parallel))


def _check_name(name: object, where: str) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"the name of a {where}() must be a non-empty string or None, not {name!r}")


def _check_alone(others: dict[str, Any]) -> None:
    """Nothing else goes with choices."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise RequestError(f"gen(choices=...) scores every choice and samples none, so leave out {', '.join(given)}")


def _think_tags(given: object) -> ThinkTags | None:
    if given is True:
        return ThinkTags()
    if given is False or given is None:
        return None
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(tag, str) and tag for tag in given):
        return ThinkTags(*given)
    raise RequestError(f"separate_reasoning must be True, False or a pair of tags, not {given!r}")


def _one_of(names: Iterable[str]) -> str:
    return f"one of {', '.join(names)}"
