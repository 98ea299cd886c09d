"""SentencePiece vocabularies inside GGUF files: the tokenizer of the tokenizer.model that they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.runtime.test_gguf_reader import write_gguf
from tests.tiny_models import tiny_config
from tests.tokenizers_of_all_forms import SENTENCES, trained_sentencepiece, write_tokenizer_model

from palmette.runtime.sentencepiece_model import read_sentencepiece
from palmette.runtime.tokenizer import Piece, Tokenizer

SYMBOLS = ("<sep>", "▁▁")


def metadata_of(model: bytes, *, pads: int = 2) -> dict[str, Any]:
    """What llama.cpp's converter writes for a tokenizer.model: the pieces in columns, and pads to the model's size."""
    pieces = read_sentencepiece(model, "test").pieces
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [piece.text for piece in pieces] + [f"[PAD{i}]" for i in range(pads)],
        "tokenizer.ggml.scores": [piece.score for piece in pieces] + [-10_000.0] * pads,
        "tokenizer.ggml.token_type": [int(piece.type) for piece in pieces] + [5] * pads,
        "tokenizer.ggml.merges": None,
    }


def load(folder: Path, model: bytes, **metadata: Any) -> Tokenizer:
    values = metadata_of(model)
    config = tiny_config(vocab_size=len(values["tokenizer.ggml.tokens"]))
    return Tokenizer.load(write_gguf(folder / "tiny.gguf", config, **values | metadata))


@pytest.mark.parametrize("dummy_prefix", [True, False])
def test_ids_and_bytes_are_those_of_the_model_file(tmp_path: Path, dummy_prefix: bool) -> None:
    """Scores, symbols, byte tokens and the space before a text."""
    model = trained_sentencepiece("bpe", symbols=SYMBOLS, add_dummy_prefix=dummy_prefix)
    theirs = Tokenizer.load(write_tokenizer_model(tmp_path, model))
    prefix: dict[str, Any] = {} if dummy_prefix else {"tokenizer.ggml.add_space_prefix": False}
    ours = load(tmp_path, model, **prefix)
    for text in (*SENTENCES, "a <sep>  é\n", "<s><0x41>"):
        pieces = [Piece("<s>", True, 0), Piece(text, False, 0)]
        assert ours.encode(pieces, start=True) == theirs.encode(pieces, start=True)
        assert ours.encode([Piece(text, False, 0)], start=True) == theirs.encode([Piece(text, False, 0)], start=True)
    assert ours.token_bytes == theirs.token_bytes
    assert ours.special_tokens == ("<unk>", "<s>", "</s>")


def test_bos_comes_first_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    """llama.cpp adds one for such vocabularies, and so does this."""
    model = trained_sentencepiece("bpe", symbols=SYMBOLS)
    text = [Piece("a", False, 0)]
    assert load(tmp_path, model).encode(text, start=True).ids[0] == 1
    without: dict[str, Any] = {"tokenizer.ggml.add_bos_token": False}
    assert load(tmp_path, model, **without).encode(text, start=True).ids[0] != 1


def test_llama3_puts_bos_first_and_takes_whole_words(tmp_path: Path) -> None:
    """The pre-tokenizer's name says so where the file does not."""
    split: dict[str, Any] = {"tokenizer.ggml.pre": "llama-bpe"}
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "tiny.gguf", tiny_config(), **split))
    assert tokenizer.encode([Piece("a", False, 0)], start=True).ids[0] == 1
    assert tokenizer.encode([Piece("<|im_start|>a", True, 0)], start=True).ids.count(1) == 1


def test_pads_to_the_size_of_the_model_are_no_tokens(tmp_path: Path) -> None:
    """What a converter fills up with is never text."""
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "tiny.gguf", tiny_config()))
    assert b"[PAD360]" not in tokenizer.token_bytes
    assert len(tokenizer.token_bytes) == 360


def test_the_end_of_a_turn_ends_a_generation(tmp_path: Path) -> None:
    """The file may name the end of a sequence, of a turn and of a message."""
    ends: dict[str, Any] = {"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.eom_token_id": 9}
    assert Tokenizer.load(write_gguf(tmp_path / "tiny.gguf", tiny_config(), **ends)).end_ids == {0, 2, 9}


def test_qwen2_composes_letters(tmp_path: Path) -> None:
    """As its own tokenizer.json does."""
    split: dict[str, Any] = {"tokenizer.ggml.pre": "qwen2"}
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "tiny.gguf", tiny_config(), **split))
    assert tokenizer.encode_text("cafe\u0301") == tokenizer.encode_text("café")
