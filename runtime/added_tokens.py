"""Which tokens stand outside a model's vocabulary, and which of them are special, from all files that say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .errors import ModelLoadError
from .tokenizer_spec import added_token

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "cls_token", "mask_token", "pad_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def all_added_tokens(spec: Mapping[str, Any], config: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
    """The added tokens of a tokenizer.json, and those that only tokenizer_config.json knows of, by id.

    Tokens that the config names are special whatever the list says, as a text must not spell the end of a sequence.

    Args:
        spec: the object in tokenizer.json.
        config: of tokenizer_config.json, which may hold what special_tokens_map.json says.
        source: named in errors.

    Raises:
        ModelLoadError: an id is not a number.
    """
    tokens = {token["content"]: dict(token) for token in spec.get("added_tokens") or ()}
    for token in _decoder(config, source):
        tokens.setdefault(token["content"], token)
    for name, content in _special_names(config):
        if content in tokens:
            tokens[content]["special"] = True
        elif name != "pad_token" and (token_id := _id_in_model(spec, content)) is not None:
            tokens[content] = added_token(token_id, content, special=True)
    return sorted(tokens.values(), key=lambda token: token["id"])


def token_text(token: Any) -> str:
    """The text of a token that is given as a string, or as an object with its flags; "" for anything else."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _decoder(config: Mapping[str, Any], source: str) -> Iterator[dict[str, Any]]:
    """Tokens of the config's `added_tokens_decoder`, which maps ids to tokens."""
    for token_id, token in (config.get("added_tokens_decoder") or {}).items():
        if not str(token_id).isdecimal():
            raise ModelLoadError(
                f"{source}: the added token {token_text(token)!r} must have a whole number as id, not {token_id!r}"
            )
        special = isinstance(token, Mapping) and bool(token.get("special"))
        whole = added_token(int(token_id), token_text(token), special=special)
        if isinstance(token, Mapping):
            whole |= {flag: bool(token[flag]) for flag in whole if isinstance(token.get(flag), bool)}
        if whole["content"]:
            yield whole


def _special_names(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where a special token is named, and its text."""
    for name in _NAMED:
        if text := token_text(config.get(name)):
            yield name, text
    for name in _LISTS:
        listed = config.get(name) or ()
        for token in listed.values() if isinstance(listed, Mapping) else listed:
            yield name, token_text(token)


def _id_in_model(spec: Mapping[str, Any], content: str) -> int | None:
    vocabulary = spec["model"]["vocab"]
    if isinstance(vocabulary, Mapping):
        return vocabulary.get(content)
    return next((i for i, (text, _) in enumerate(vocabulary) if text == content), None)
