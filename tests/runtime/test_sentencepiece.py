"""SentencePiece's tokenizer.model, read without its package and equal to it in ids."""

from __future__ import annotations

import contextlib
import functools
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tokenizers_of_all_forms import SENTENCES, sentencepiece_model, trained_sentencepiece, write_tokenizer_model

from palmette.runtime.errors import ModelLoadError
from palmette.runtime.sentencepiece_model import PieceType, SentencePiece, read_sentencepiece
from palmette.runtime.tokenizer import Piece, Tokenizer

BYTES = [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
SPECIALS = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
LETTERS = [("▁", -9.0, 1), ("a", -10.0, 1), ("b", -11.0, 1)]
SYMBOLS = ("<sep>", "▁▁", "foo")
MIXED = ["foo", "<sep>", "  ", "   ", "<s>", "<0x41>", "é", "①ﬁ", "\u3000", "\t", "x"]


@functools.cache
def both(kind: str, **options: Any) -> tuple[Tokenizer, Any]:
    """Our tokenizer and SentencePiece's, of one model."""
    import sentencepiece

    model = trained_sentencepiece(kind, **options)
    folder = write_tokenizer_model(Path(tempfile.mkdtemp()), model, add_bos_token=False)
    return Tokenizer.load(folder), sentencepiece.SentencePieceProcessor(model_proto=model)


def load(folder: Path, pieces: list[tuple[str, float, int]], **fields: Any) -> Tokenizer:
    return Tokenizer.load(write_tokenizer_model(folder, sentencepiece_model(pieces, **fields), add_bos_token=False))


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode([Piece(text, False, 0)], start=True).ids


def random_texts(count: int) -> list[str]:
    """Texts of pieces, letters and symbols in disorder; no runs of one symbol, whose order would be a tie."""
    chosen = random.Random(0)
    letters = "".join(SENTENCES)
    return [
        "".join(chosen.choice([chosen.choice(letters), *MIXED]) for _ in range(chosen.randint(0, 25)))
        for _ in range(count)
    ]


@pytest.mark.parametrize("charsmap", ["identity", "nfkc", "nmt_nfkc_cf"])
@pytest.mark.parametrize("options", [{}, {"add_dummy_prefix": False}, {"remove_extra_whitespaces": True}])
def test_byte_pairs_are_those_of_the_package(charsmap: str, options: dict[str, bool]) -> None:
    """Symbols, unknown characters, normalization and every rule of spaces."""
    ours, theirs = both("bpe", charsmap=charsmap, symbols=SYMBOLS, **options)
    for text in (*SENTENCES, *random_texts(150)):
        assert ids_of(ours, text) == theirs.encode(text), text


@pytest.mark.parametrize("charsmap", ["identity", "nmt_nfkc"])
@pytest.mark.parametrize("options", [{"add_dummy_prefix": False}, {"remove_extra_whitespaces": True}])
def test_unigrams_are_those_of_the_package(charsmap: str, options: dict[str, bool]) -> None:
    """The likeliest segmentation, with symbols that always win."""
    ours, theirs = both("unigram", charsmap=charsmap, symbols=("<sep>", "foo"), **options)
    for text in (*SENTENCES, *random_texts(150)):
        assert ids_of(ours, text) == theirs.encode(text), text


@given(text=st.text(alphabet="ab ", max_size=60))
def test_merges_of_few_letters_are_those_of_the_package(text: str) -> None:
    """Many ways lead to the same piece, and the leftmost is taken first."""
    ours, theirs = both("bpe", split_by_whitespace=False)
    assert ids_of(ours, text) == theirs.encode(text)


def test_a_model_is_read_from_its_protocol_buffer() -> None:
    """Fields in any number, defaults where they are missing, and ids of control tokens."""
    model = read_sentencepiece(sentencepiece_model([*SPECIALS, *LETTERS], trainer={3: 2}, normalizer={3: 0}), "test")
    assert (model.kind, model.bos_id, model.eos_id) == ("bpe", 1, 2)
    assert (model.dummy_prefix, model.extra_spaces_removed, model.spaces_escaped) == (False, True, True)
    assert model.pieces[1].type is PieceType.CONTROL
    assert model.pieces[3] == SentencePiece("▁", -9.0, PieceType.NORMAL)
    without_bos = read_sentencepiece(sentencepiece_model(LETTERS, trainer={41: -1, 42: 1}), "test")
    assert (without_bos.bos_id, without_bos.eos_id, without_bos.kind) == (None, None, "unigram")


def test_what_a_model_of_the_package_says_is_what_we_read() -> None:
    """Pieces, scores and types, one by one."""
    import sentencepiece

    data = trained_sentencepiece("bpe", symbols=SYMBOLS)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    pieces = read_sentencepiece(data, "test").pieces
    assert len(pieces) == theirs.vocab_size()
    for i, piece in enumerate(pieces):
        assert (piece.text, piece.score) == (theirs.id_to_piece(i), theirs.get_score(i))
        assert (piece.type is PieceType.BYTE, piece.type is PieceType.CONTROL) == (
            theirs.is_byte(i),
            theirs.is_control(i),
        )


def test_user_defined_symbols_are_found_in_any_text(tmp_path: Path) -> None:
    """They have bytes, as a model may write them, and no special meaning."""
    tokenizer = load(
        tmp_path,
        [*SPECIALS, *BYTES, *LETTERS, ("<sep>", 0.0, 4), ("▁▁▁", 0.0, 4)],
        trainer={3: 2},
        normalizer={3: 0, 4: 0},
    )
    assert ids_of(tokenizer, "a<sep>   b") == [260, 262, 263, 261]
    assert tokenizer.token_bytes[262:] == (b"<sep>", b"   ")
    assert tokenizer.special_tokens == ("<unk>", "<s>", "</s>")


def test_unused_pieces_are_holes(tmp_path: Path) -> None:
    """No text becomes an unused piece, and none has its bytes."""
    tokenizer = load(
        tmp_path,
        [*SPECIALS, *BYTES, *LETTERS, ("ab", -1.0, 5), ("ba", -2.0, 1)],
        trainer={3: 2},
        normalizer={3: 0, 4: 0},
    )
    assert ids_of(tokenizer, "abab") == [260, 263, 261]
    assert tokenizer.token_bytes[262:] == (None, b"ba")


def test_without_byte_fallback_unknown_text_is_the_unknown_token(tmp_path: Path) -> None:
    """<0xHH> is then a piece like any other."""
    pieces = [*SPECIALS, *LETTERS, ("<0x41>", -1.0, 1)]
    tokenizer = load(tmp_path, pieces, trainer={3: 2}, normalizer={3: 0, 4: 0})
    assert ids_of(tokenizer, "aéb") == [4, 0, 5]
    assert tokenizer.token_bytes[6] == b"<0x41>"


def test_spaces_are_removed_where_a_text_begins_and_ends() -> None:
    """Text that goes on from other text keeps the space it begins with."""
    tokenizer, _ = both("bpe", remove_extra_whitespaces=True)
    assert ids_of(tokenizer, "   a   b  ") == ids_of(tokenizer, "a b")
    assert b"".join(tokenizer.token_bytes[i] or b"" for i in tokenizer.encode_text("  a  b ")) == b" a b"
    assert tokenizer.encode_text("   ") == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trainer": {3: 3}}, "it is of type 'word', and bpe and unigram are supported"),
        ({"trainer": {24: 1}}, "it puts spaces behind words"),
        ({"normalizer": {5: 0}}, "it keeps spaces as they are"),
    ],
)
def test_rules_without_a_counterpart_are_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    """The error names the file and the rule."""
    with pytest.raises(
        ModelLoadError, match=rf"tokenizer\.model is a SentencePiece model that cannot be used: {message}"
    ):
        load(tmp_path, [*SPECIALS, *LETTERS], **fields)
    with pytest.raises(ModelLoadError, match="no token for unknown text"):
        load(tmp_path, LETTERS)


@pytest.mark.parametrize("keep", [0, 1, 5, 100])
def test_damaged_files_are_named(tmp_path: Path, keep: int) -> None:
    """Cut off anywhere, or something else altogether."""
    whole = sentencepiece_model([*SPECIALS, *BYTES])
    (tmp_path / "tokenizer.model").write_bytes(whole[:keep])
    with pytest.raises(ModelLoadError, match=r"tokenizer\.model is not a SentencePiece model, or it is damaged"):
        Tokenizer.load(tmp_path)


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_model_or_an_error(data: bytes) -> None:
    """No file makes the reader fail in another way."""
    with contextlib.suppress(ModelLoadError):
        read_sentencepiece(data, "test")
