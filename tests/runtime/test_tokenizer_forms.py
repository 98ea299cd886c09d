"""What holds of every form of tokenizer: exact bytes, the package's own decoding, streaming, one BOS."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tokenizers_of_all_forms import (
    FORMS,
    SENTENCES,
    folder_of,
    tokenizer_of,
    write_bpe_files,
)

from palmette.runtime.detokenizer import OutputText
from palmette.runtime.errors import ModelLoadError
from palmette.runtime.tokenizer import Piece, Tokenizer
from palmette.runtime.tokenizer_files import TokenizerFiles


@functools.cache
def package_of(form: str) -> Any:
    """The package that wrote the files."""
    import sentencepiece
    import tokenizers

    if (model := folder_of(form) / "tokenizer.model").is_file():
        return sentencepiece.SentencePieceProcessor(model_file=str(model))
    return tokenizers.Tokenizer.from_str(TokenizerFiles.from_folder(folder_of(form)).tokenizer_json)


def bytes_of(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    return b"".join(tokenizer.token_bytes[i] or b"" for i in ids)


words = st.sampled_from(
    [*" ".join(SENTENCES).split(), "  ", "\n\n", "<s>", "</s>", "<unk>", "<0x41>", "<sep>", "<|im_end|>"]
)
texts = st.one_of(st.text(max_size=40), st.lists(words, max_size=12).map(" ".join)).filter(lambda text: "▁" not in text)
every_form = pytest.mark.parametrize("form", FORMS)


@every_form
@settings(max_examples=60)
@given(text=texts)
def test_bytes_of_the_ids_are_the_text(form: str, text: str) -> None:
    """Whatever is encoded comes back byte for byte, and what spells a special or byte token is only text."""
    tokenizer = tokenizer_of(form)
    ids = tokenizer.encode_text(text)
    assert tokenizer.spell(text) == ids
    assert bytes_of(tokenizer, ids) == text.encode()
    assert all(tokenizer.token_bytes[i] is not None for i in ids)


@every_form
@settings(max_examples=30)
@given(text=texts)
def test_the_package_of_the_files_decodes_to_the_same_text(form: str, text: str) -> None:
    """SentencePiece or `tokenizers` writes the same for these ids, and the detokenizer streams it."""
    tokenizer = tokenizer_of(form)
    ids = tokenizer.encode([Piece(text, False, 0)], start=True).ids
    written = bytes_of(tokenizer, ids).decode()
    assert written in (text, f" {text}")
    assert package_of(form).decode(ids) == text  # it takes a dummy prefix off again
    streamed = OutputText(tokenizer.token_bytes)
    assert "".join(map(streamed.push, ids)) + streamed.finish() == written


@every_form
def test_every_byte_can_be_spelled(form: str) -> None:
    """Grammars reach any text: each byte is a token, and no token of text is empty."""
    known = {token for token in tokenizer_of(form).token_bytes if token is not None}
    assert {bytes([byte]) for byte in range(256)} <= known
    assert b"" not in known


@every_form
@settings(max_examples=20)
@given(parts=st.lists(st.sampled_from(["ab ", "日本", " é", "\n", "x"]), max_size=6))
def test_a_text_is_encoded_alike_in_however_many_pieces(form: str, parts: list[str]) -> None:
    """Owners follow the pieces, and the ids are those of the whole."""
    tokenizer = tokenizer_of(form)
    pieces = [Piece(part, False, owner) for owner, part in enumerate(parts)]
    encoded = tokenizer.encode(pieces, start=True)
    assert encoded.ids == tokenizer.encode([Piece("".join(parts), False, 0)], start=True).ids
    assert encoded.owners == sorted(encoded.owners)


@pytest.mark.parametrize("form", ["sentencepiece bpe", "sentencepiece unigram"])
def test_bos_comes_once_from_sentencepiece(form: str) -> None:
    """Llama's classes put it there unless the template did; others where the config says so."""
    tokenizer = tokenizer_of(form)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.bos_id) == ("<s>", "</s>", 1)
    plain = tokenizer.encode([Piece("[INST] a", False, 0)], start=True)
    assert plain.ids.count(1) == 1
    assert plain.ids[0] == 1
    from_template = tokenizer.encode([Piece("<s>", True, 0), Piece("[INST] a", False, 0)], start=True)
    assert from_template.ids.count(1) == 1
    assert tokenizer.encode([Piece("a", False, 0)], start=False).ids.count(1) == 0


@pytest.mark.parametrize(
    ("config", "added"), [({"add_bos_token": True}, True), ({"add_bos_token": False}, False), ({}, False)]
)
def test_the_config_says_whether_bos_comes_first(tmp_path: Path, config: dict[str, bool], added: bool) -> None:
    """add_bos_token wins; vocab.json and merges.txt add none by themselves."""
    tokenizer = Tokenizer.load(write_bpe_files(tmp_path, **config))
    ids = tokenizer.encode([Piece("a", False, 0)], start=True).ids
    assert ids == ([1] if added else []) + tokenizer.encode_text("a")
    assert tokenizer.encode([Piece("<|im_start|>a", True, 0)], start=True).ids == [1, *tokenizer.encode_text("a")]


def test_tokens_that_only_other_files_name_are_special(tmp_path: Path) -> None:
    """special_tokens_map.json, added_tokens.json and added_tokens_decoder add to vocab.json."""
    write_bpe_files(tmp_path, added_tokens_decoder={"400": {"content": "<call>", "special": False, "rstrip": True}})
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|user|>": 401, "<think>": 402}))
    names = {"eos_token": {"content": "<|im_end|>"}, "additional_special_tokens": ["<|user|>"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.special_tokens == ("<|im_start|>", "<|im_end|>", "<|user|>")
    assert tokenizer.end_ids == {2}
    assert tokenizer.encode_text("a<call>b<think>") == [
        *tokenizer.encode_text("a"),
        400,
        *tokenizer.encode_text("b"),
        402,
    ]
    assert 401 not in tokenizer.encode_text("<|user|>")
    assert tokenizer.encode([Piece("<|user|>", True, 0)], start=False).ids == [401]
    assert tokenizer.token_bytes[399:] == (None, b"<call>", None, b"<think>")


def test_qwen2_files_are_split_and_composed_as_qwen2_does(tmp_path: Path) -> None:
    """tokenizer_class names the family; its ids are those of transformers."""
    from transformers import Qwen2Tokenizer

    model = json.loads((write_bpe_files(tmp_path, tokenizer_class="Qwen2Tokenizer") / "vocab.json").read_text())
    merges = [tuple(line.split(" ")) for line in (tmp_path / "merges.txt").read_text().split("\n")[1:] if line]
    reference = Qwen2Tokenizer(vocab=model, merges=merges)
    tokenizer = Tokenizer.load(tmp_path)
    for text in ("In 1234 there's\n\n  cafe\u0301", *SENTENCES):
        assert tokenizer.encode_text(text) == reference.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no tokenizer: it needs tokenizer.json"),
        ({"vocab.txt": "[PAD]"}, "has vocab.txt, which cannot be used here.*AutoTokenizer"),
        ({"tekken.json": "{}"}, "has tekken.json, which cannot be used here"),
        ({"vocab.json": "{}"}, "has vocab.json, which cannot be used here"),
        ({"vocab.json": '{"a": "b"}', "merges.txt": ""}, "must map each token to its id"),
        ({"vocab.json": "{}", "merges.txt": "", "added_tokens.json": '{"<x>": "y"}'}, "<x>' must have a whole number"),
        ({"vocab.json": "{}", "merges.txt": "a b c"}, "a line must hold two tokens, not 'a b c'"),
        (
            {"vocab.json": "{}", "merges.txt": "", "tokenizer_config.json": '{"tokenizer_class": "CTRLTokenizer"}'},
            "how CTRLTokenizer splits the text.*known: PreTrainedTokenizer, GPT2Tokenizer, Qwen2Tokenizer",
        ),
    ],
)
def test_folders_that_cannot_be_used_are_told_what_they_need(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    """The error names the file that is there and what would work."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelLoadError, match=f"(?s){message}"):
        Tokenizer.load(tmp_path)
