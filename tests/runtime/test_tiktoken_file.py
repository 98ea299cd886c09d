"""Vocabularies in tiktoken's text form: the ids of tiktoken itself."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tests.tokenizers_of_all_forms import PAT_STR, SENTENCES, tiktoken_ranks, write_tiktoken

from palmette.runtime.errors import ModelLoadError
from palmette.runtime.tiktoken_file import _FAMILIES
from palmette.runtime.tokenizer import Piece, Tokenizer


@functools.cache
def ours() -> Tokenizer:
    return Tokenizer.load(write_tiktoken(Path(tempfile.mkdtemp())))


@functools.cache
def theirs() -> tiktoken.Encoding:
    return tiktoken.Encoding("tiny", pat_str=PAT_STR, mergeable_ranks=tiktoken_ranks(), special_tokens={})


@pytest.mark.parametrize("text", SENTENCES)
def test_sentences_have_the_ids_of_tiktoken(text: str) -> None:
    """Words split by the pattern, pairs merged by what they make."""
    assert ours().encode_text(text) == theirs().encode(text)


@given(text=st.text(max_size=40) | st.text(alphabet="the anod \n", max_size=60))
def test_any_text_has_the_ids_of_tiktoken(text: str) -> None:
    """In every script."""
    assert ours().encode_text(text) == theirs().encode(text, disallowed_special=())


def test_tokens_are_their_bytes() -> None:
    """Ranks are ids."""
    assert ours().token_bytes == tuple(tiktoken_ranks())
    assert ours().special_tokens == ()


def test_special_tokens_come_from_the_config(tmp_path: Path) -> None:
    """added_tokens_decoder of tokenizer_config.json, as in a folder of transformers."""
    size = len(tiktoken_ranks())
    listed = {str(size + 1): {"content": "<|end|>", "special": True}, str(size + 2): {"content": "<t>"}}
    folder = write_tiktoken(tmp_path, "tokenizer.model", added_tokens_decoder=listed, eos_token="<|end|>")
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.special_tokens == ("<|end|>",)
    assert tokenizer.end_ids == {size + 1}
    assert tokenizer.token_bytes[size:] == (None, None, b"<t>")
    assert tokenizer.encode_text("<t>") == [size + 2]


def load_as(size: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Tokenizer:
    """The tiny vocabulary, taken for the published one of this size."""
    monkeypatch.setitem(_FAMILIES, len(tiktoken_ranks()), _FAMILIES[size])
    return Tokenizer.load(write_tiktoken(folder, "tokenizer.model", pat_str=None))


def test_llama3_is_known_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pattern, special tokens and BOS are the family's, and BOS comes once."""
    tokenizer = load_as(128_000, tmp_path, monkeypatch)
    bos = len(tiktoken_ranks())
    assert (tokenizer.bos_id, tokenizer.bos_token, tokenizer.eos_token) == (bos, "<|begin_of_text|>", "<|end_of_text|>")
    assert tokenizer.end_ids == {bos + 1, bos + 8, bos + 9}
    assert len(tokenizer.special_tokens) == 256
    asked = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
    ids = tokenizer.encode([Piece(asked, True, 0), Piece("Hi<|eot_id|>", False, 1)], start=True).ids
    assert ids[:2] == [bos, bos + 6]
    assert ids.count(bos) == 1
    assert bos + 9 not in ids
    assert tokenizer.encode([Piece("Hi", False, 0)], start=True).ids[0] == bos
    assert len(tokenizer.encode_text("123")) < len(tokenizer.encode_text("1 2 3"))


def test_qwen_is_known_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no BOS, and composes letters."""
    tokenizer = load_as(151_643, tmp_path, monkeypatch)
    first = len(tiktoken_ranks())
    assert tokenizer.end_ids == {first, first + 2}
    assert tokenizer.bos_id is None
    assert tokenizer.encode([Piece("cafe\u0301", False, 0)], start=True).ids == tokenizer.encode_text("café")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pat_str": None}, r'holds \d+ tokens.*known for vocabularies of 128,000 and 151,643.*"pat_str"'),
        ({"pat_str": r"\p{N}{1,3}+"}, r"uses `\{n,m\}\+` or `\$`"),
        ({"pat_str": "("}, "cannot be used"),
    ],
)
def test_patterns_that_cannot_be_used_are_named(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    """The error says where the pattern goes."""
    with pytest.raises(ModelLoadError, match=message):
        Tokenizer.load(write_tiktoken(tmp_path, **config))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (b"YQ== 0\nnonsense\n", "line 2: it is not a token in base64 and a rank"),
        (b"YQ== 0\nYQ 1\n", "line 2: "),
        (b"YQ== 0\n", "cannot spell all text: 255 single bytes have no token, 0x00 among them"),
    ],
)
def test_lines_that_cannot_be_read_are_named(tmp_path: Path, lines: bytes, message: str) -> None:
    """The error names the file and the line."""
    (tmp_path / "x.tiktoken").write_bytes(lines)
    with pytest.raises(ModelLoadError, match=rf"x\.tiktoken.*{message}"):
        Tokenizer.load(tmp_path)
