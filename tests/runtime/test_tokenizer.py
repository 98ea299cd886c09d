"""Text to ids and bytes: whose token is whose, special tokens from templates only, one encoding for one text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny_models import tiny_tokenizer_spec, write_tiny_model
from tests.tokenizers_of_all_forms import write_bpe_files

from palmette.runtime.errors import ModelLoadError, RequestError
from palmette.runtime.token_bytes import vocabulary_bytes
from palmette.runtime.tokenizer import Piece, Tokenizer
from palmette.runtime.tokenizer_files import TokenizerFiles

BOS = "<|im_start|>"


def tiny(*, spec: dict[str, Any] | None = None, **files: Any) -> Tokenizer:
    config = {"bos_token": BOS, "eos_token": {"content": "<|im_end|>"}}
    values = {"source": "test", "tokenizer_json": json.dumps(spec or tiny_tokenizer_spec()), "tokenizer_config": config}
    return Tokenizer(TokenizerFiles(**values | files))


def with_bos() -> dict[str, Any]:
    """A tokenizer that puts BOS before every text itself."""
    bos, text = {"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {BOS: {"id": BOS, "ids": [1], "tokens": [BOS]}},
    }
    return {**tiny_tokenizer_spec(), "post_processor": template}


def sentencepiece(**changes: Any) -> dict[str, Any]:
    """A vocabulary with underscores, byte tokens and a dummy prefix, as SentencePiece models have."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]
    specials = [{"id": i, "content": tokens[i], "special": True} for i in range(3)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [special | flags for special in specials],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [["▁", "a"], ["a", "b"], ["▁a", "b"]],
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
        },
    } | changes


TINY = tiny()


def text_of(ids: list[int], tokenizer: Tokenizer = TINY) -> str:
    return b"".join(tokenizer.token_bytes[i] or b"" for i in ids).decode()


pieces_of_text = st.lists(st.tuples(st.text(max_size=20), st.booleans()), max_size=6)


@given(text=st.text(max_size=80))
def test_bytes_of_the_ids_are_the_text(text: str) -> None:
    """token_bytes are exact: whatever is encoded comes back byte for byte."""
    assert text_of(TINY.encode_text(text)) == text


@given(parts=pieces_of_text)
def test_text_is_encoded_alike_in_however_many_pieces(parts: list[tuple[str, bool]]) -> None:
    """The same text gives the same ids whether it came in one node or several."""
    pieces = [Piece(text, template, owner) for owner, (text, template) in enumerate(parts)]
    encoded = TINY.encode(pieces, start=True)
    assert encoded.ids == TINY.encode_text("".join(text for text, _ in parts))
    assert len(encoded.owners) == len(encoded.ids)
    assert encoded.owners == sorted(encoded.owners)


@given(parts=st.lists(st.text(alphabet="abc 1😀é", max_size=8), max_size=6))
def test_a_token_belongs_to_the_piece_where_its_text_begins(parts: list[str]) -> None:
    """Owners follow the first byte of each token."""
    encoded = TINY.encode([Piece(text, False, owner) for owner, text in enumerate(parts)], start=False)
    owner_of_byte = [owner for owner, text in enumerate(parts) for _ in text.encode()]
    begin = 0
    for token_id, owner in zip(encoded.ids, encoded.owners, strict=True):
        assert owner == owner_of_byte[begin]
        begin += len(TINY.token_bytes[token_id] or b"")


def test_special_tokens_come_from_templates_only() -> None:
    """A user who writes <|im_end|> has written ten characters."""
    template = TINY.encode([Piece("<|im_start|>user\n", True, 1), Piece("hi<|im_end|>", False, 2)], start=True)
    assert template.ids[0] == 1
    assert template.owners[0] == 1
    assert 2 not in template.ids
    assert text_of(template.ids) == "user\nhi<|im_end|>"
    assert TINY.encode([Piece("<|im_end|>", True, 0)], start=False).ids == [2]
    assert 2 not in TINY.encode_text("<|im_end|>")


def test_text_split_over_a_template_and_a_plain_piece_never_makes_a_special_token() -> None:
    """Half of a special token from each side is ordinary text."""
    encoded = TINY.encode([Piece("<|im_", True, 0), Piece("end|>", False, 1)], start=False)
    assert text_of(encoded.ids) == "<|im_end|>"


def test_bos_is_added_once_and_only_where_the_tokenizer_adds_it() -> None:
    """Exactly one side owns BOS."""
    adding = tiny(spec=with_bos())
    assert TINY.encode([Piece("a", False, 5)], start=True).ids == TINY.encode_text("a")
    encoded = adding.encode([Piece("a", False, 5)], start=True)
    assert encoded.ids == [1, *TINY.encode_text("a")]
    assert encoded.owners == [5, 5]
    assert adding.encode([Piece(f"{BOS}a", True, 5)], start=True).ids == encoded.ids
    assert adding.encode([Piece("a", False, 5)], start=False).ids == encoded.ids[1:]
    assert adding.encode([], start=True).ids == []
    assert adding.start_id == 1


def test_an_empty_context_begins_with_bos_or_eos() -> None:
    """A model without BOS begins with EOS; one with neither says so."""
    assert tiny(tokenizer_config={"eos_token": "<|im_end|>"}).start_id == 2
    with pytest.raises(ModelLoadError, match="neither a bos_token nor an eos_token"):
        _ = tiny(tokenizer_config={}).start_id


def test_end_ids_are_gathered_from_everywhere() -> None:
    """tokenizer, config, generation config, and the token that ends a turn of chat."""
    assert TINY.end_ids == {2}
    tokenizer = tiny(
        tokenizer_config={"eos_token": "<|endoftext|>"},
        config={"eos_token_id": 5},
        generation_config={"eos_token_id": [6, 7]},
    )
    assert tokenizer.end_ids == {0, 2, 5, 6, 7}


def test_special_tokens_have_no_bytes_and_other_added_ones_have() -> None:
    """Masks and output text leave special tokens out; <tool_call> and its like are text."""
    spec = json.loads(json.dumps(tiny_tokenizer_spec()))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    spec["added_tokens"].append({"id": 370, "content": "<tool é>", "special": False, **flags})
    tokenizer = tiny(spec=spec)
    assert tokenizer.token_bytes[:3] == (None, None, None)
    assert tokenizer.token_bytes[365] is None
    assert tokenizer.token_bytes[370] == "<tool é>".encode()


def test_sentencepiece_tokens_decode_to_bytes() -> None:
    """Underscores are spaces and <0xHH> is a byte; specials have none."""
    decoded = vocabulary_bytes(sentencepiece(), source="test")
    assert decoded[:3] == (None, None, None)
    assert decoded[3 + 0xE9] == b"\xe9"
    assert decoded[-2:] == (b"ab", b" ab")


@pytest.mark.parametrize("scheme", ["prepend", "metaspace"])
def test_a_dummy_prefix_opens_a_text_and_never_continues_one(scheme: str) -> None:
    """Text after a generation or a special token gets no space of the tokenizer's own."""
    changes: dict[str, Any] = {}
    if scheme == "metaspace":
        pre = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
        changes = {"normalizer": None, "pre_tokenizer": pre}
    tokenizer = tiny(spec=sentencepiece(**changes), tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"})
    assert text_of(tokenizer.encode([Piece("ab", False, 0)], start=True).ids, tokenizer) == " ab"
    assert text_of(tokenizer.encode([Piece("ab", False, 0)], start=False).ids, tokenizer) == "ab"
    assert text_of(tokenizer.encode_text("ab é"), tokenizer) == "ab é"
    after_special = tokenizer.encode([Piece("a</s>ab", True, 0)], start=True)
    assert text_of(after_special.ids, tokenizer) == " aab"


def test_special_tokens_swallow_the_spaces_that_they_say() -> None:
    """rstrip of an added token holds in templates."""
    spec = json.loads(json.dumps(tiny_tokenizer_spec()))
    spec["added_tokens"][2]["rstrip"] = True
    encoded = tiny(spec=spec).encode([Piece("a<|im_end|> \n b", True, 0)], start=False)
    assert encoded.ids == [*TINY.encode_text("a"), 2, *TINY.encode_text("b")]


def test_a_token_that_is_a_word_of_its_own_is_found_only_there() -> None:
    """single_word of an added token holds in templates."""
    spec = json.loads(json.dumps(tiny_tokenizer_spec()))
    spec["added_tokens"][2] |= {"content": "END", "single_word": True}
    spec["model"]["vocab"]["END"] = spec["model"]["vocab"].pop("<|im_end|>")
    tokenizer = tiny(spec=spec, tokenizer_config={})
    assert tokenizer.encode([Piece("a END", True, 0)], start=False).ids[-1] == 2
    assert 2 not in tokenizer.encode([Piece("BENDS", True, 0)], start=False).ids


def added(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
    """An entry of a tokenizer.json's added tokens."""
    defaults = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return {"id": token_id, "content": content, **defaults, **flags}


def test_added_tokens_keep_the_ids_that_the_file_gives_them() -> None:
    """Ids may leave holes, and lie past the vocabulary of the model."""
    spec = json.loads(json.dumps(tiny_tokenizer_spec()))
    spec["added_tokens"] += [added(370, "<tool>"), added(380, "<|late|>", special=True), added(375, "<café>")]
    tokenizer = tiny(spec=spec)
    assert tokenizer.encode_text("a<tool>b<café>") == [
        *tokenizer.encode_text("a"),
        370,
        *tokenizer.encode_text("b"),
        375,
    ]
    assert tokenizer.special_tokens == ("<|endoftext|>", BOS, "<|im_end|>", "<|late|>")
    assert len(tokenizer.token_bytes) == 381
    assert [i for i in range(360, 381) if tokenizer.token_bytes[i]] == [370, 375]
    assert (tokenizer.token_text(370), tokenizer.token_text(371), tokenizer.token_text(10_000)) == ("<tool>", "", "")


def test_spaces_that_an_added_token_swallows_are_no_part_of_its_bytes() -> None:
    """The decoder writes the token alone, and so it is in grammars and output text."""
    spec = json.loads(json.dumps(tiny_tokenizer_spec()))
    spec["added_tokens"].append(added(370, "<tool>", lstrip=True, rstrip=True))
    tokenizer = tiny(spec=spec)
    assert tokenizer.encode_text("a <tool> b") == [*tokenizer.encode_text("a"), 370, *tokenizer.encode_text("b")]
    assert text_of(tokenizer.encode_text("a <tool> b"), tokenizer) == "a<tool>b"


def test_tokens_that_the_config_names_are_special_whatever_the_list_says() -> None:
    """A user's text must not end a sequence, though tokenizer.json calls its end an ordinary token."""
    spec = json.loads(json.dumps(tiny_tokenizer_spec()))
    spec["added_tokens"][2]["special"] = False
    del spec["added_tokens"][1]
    tokenizer = tiny(spec=spec)
    assert tokenizer.special_tokens == ("<|endoftext|>", BOS, "<|im_end|>")
    assert 2 not in tokenizer.encode_text("<|im_end|>")
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)


def test_bytes_are_those_of_the_text_as_it_is_normalized() -> None:
    """A decomposed letter is encoded as the composed one, and its tokens' bytes say so."""
    tokenizer = tiny(spec={**tiny_tokenizer_spec(), "normalizer": {"type": "NFC"}})
    assert text_of(tokenizer.encode_text("cafe\u0301"), tokenizer) == "café"
    assert tokenizer.encode_text("cafe\u0301") == TINY.encode_text("café")


def test_a_text_that_the_package_cannot_encode_ends_its_request_only() -> None:
    """A panic of the tokenizers package, which is no Exception, becomes an error of the request."""
    unlucky = {"type": "Replace", "pattern": {"Regex": "▁+\\z"}, "content": ""}
    spec = {**tiny_tokenizer_spec(), "normalizer": unlucky}
    spec["added_tokens"] = [*spec["added_tokens"], added(370, "▁", normalized=True)]
    with pytest.raises(RequestError, match="cannot encode the text 'é'"):
        tiny(spec=spec).encode_text("é")


def test_other_kinds_of_tokenizer_are_refused_by_name() -> None:
    """WordPiece has no exact bytes."""
    with pytest.raises(ModelLoadError, match="decodes tokens by WordPiece"):
        vocabulary_bytes({**tiny_tokenizer_spec(), "decoder": {"type": "WordPiece"}}, source="test")
    with pytest.raises(ModelLoadError, match="decodes tokens by BPEDecoder"):
        vocabulary_bytes({**tiny_tokenizer_spec(), "decoder": {"type": "BPEDecoder", "suffix": "</w>"}}, source="test")
    with pytest.raises(ModelLoadError, match="decodes tokens by nothing"):
        vocabulary_bytes({**tiny_tokenizer_spec(), "decoder": None}, source="test")


def test_broken_files_are_named(tmp_path: Path) -> None:
    """No tokenizer.json, one that is not JSON, and one that the tokenizers package refuses."""
    with pytest.raises(ModelLoadError, match=r"has no tokenizer: it needs tokenizer\.json.*AutoTokenizer"):
        Tokenizer.load(tmp_path)
    with pytest.raises(ModelLoadError, match="does not describe a tokenizer"):
        tiny(tokenizer_json="{}")
    with pytest.raises(ModelLoadError, match="cannot be used"):
        tiny(spec={**tiny_tokenizer_spec(), "pre_tokenizer": {"type": "Nonsense"}})


def huge_id() -> dict[str, Any]:
    """An added token whose id would make a vocabulary of a million millions."""
    return {**tiny_tokenizer_spec(), "added_tokens": [{"id": 10**12, "content": "<far>", "special": True}]}


@pytest.mark.parametrize(
    "values",
    [
        {"spec": {**tiny_tokenizer_spec(), "added_tokens": 5}},
        {"spec": {**tiny_tokenizer_spec(), "added_tokens": [{"content": {}}]}},
        {"spec": {**tiny_tokenizer_spec(), "normalizer": {}}},
        {"spec": {**tiny_tokenizer_spec(), "pre_tokenizer": "ByteLevel"}},
        {"spec": huge_id()},
        {"tokenizer_config": {"added_tokens_decoder": [1]}},
        {"tokenizer_config": {"added_tokens_decoder": {"x": "<a>"}}},
        {"tokenizer_config": {"additional_special_tokens": 7}},
        {"config": {"text_config": 3}},
    ],
)
def test_values_of_the_wrong_kind_are_told_as_damage(values: dict[str, Any]) -> None:
    """Whatever a file holds in place of what belongs there, the error is of loading and names where it came from."""
    with pytest.raises(ModelLoadError, match=r"^test\b"):
        tiny(**values)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are told of as of the file that holds them."""
    (tmp_path / "tokenizer.json").write_bytes(b'{"\xff')
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json cannot be read as text"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (write_bpe_files(tmp_path) / "merges.txt").write_bytes(b"a b\n\xff\xff")
    with pytest.raises(ModelLoadError, match=r"merges\.txt cannot be read as text"):
        Tokenizer.load(tmp_path)


def test_a_chat_template_may_lie_in_a_json_file_beside_the_tokenizer(tmp_path: Path) -> None:
    """As multimodal models have it; one in tokenizer_config.json wins."""
    folder = write_tiny_model(tmp_path)
    (folder / "chat_template.json").write_text('{"chat_template": "beside"}')
    assert "im_start" in (Tokenizer.load(folder).chat_template or "")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    assert Tokenizer.load(folder).chat_template == "beside"


def test_chat_templates_are_found_in_all_three_places(tmp_path: Path) -> None:
    """A file of its own wins; a list holds a default."""
    folder = write_tiny_model(tmp_path)
    assert "im_start" in (Tokenizer.load(folder).chat_template or "")
    (folder / "chat_template.jinja").write_text("own")
    assert Tokenizer.load(folder).chat_template == "own"
    named = {"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]}
    assert tiny(tokenizer_config=named).chat_template == "d"
    assert tiny().chat_template is None


def test_long_texts_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second encoding of a long prompt comes from the cache, and the cache stays bounded."""
    monkeypatch.setattr("palmette.runtime.text_encoder._CACHED_CHARACTERS", 1000)
    tokenizer = tiny()
    texts = [str(i) * 400 for i in range(4)]
    first = [tokenizer.encode_text(text) for text in texts]
    assert [tokenizer.encode_text(text) for text in texts] == first
    encoder = tokenizer._encoder
    assert encoder.encode(texts[3], first=False) is encoder.encode(texts[3], first=False)
    assert len(encoder._cache._entries) == 2


def test_vocabulary_is_as_wide_as_the_logits() -> None:
    """Padding ids past the last token exist and are never allowed; it is built once."""
    vocabulary = TINY.vocabulary(366)
    assert vocabulary.size == 366
    assert vocabulary.end_ids == {2}
    assert TINY.vocabulary(366) is vocabulary


@pytest.mark.default_model
def test_default_model_splits_digits_and_agrees_with_transformers(default_model_folder: Path) -> None:
    """The tokenizer rebuilt from GGUF metadata is the published one."""
    from transformers import AutoTokenizer

    tokenizer, reference = Tokenizer.load(default_model_folder), AutoTokenizer.from_pretrained(default_model_folder)
    text = "In 1234 there were 56.7 naïve 日本語 😀 readers,\n\n\tit's said.  'twas 3,000!"
    assert tokenizer.encode_text(text) == reference(text).input_ids
    assert text_of(tokenizer.encode_text(text), tokenizer) == text
    assert [tokenizer.token_bytes[i] for i in tokenizer.encode_text("2024")] == [b"2", b"0", b"2", b"4"]
    assert tokenizer.end_ids == {2}
    assert "You are a helpful AI assistant named SmolLM, trained by Hugging Face" in (tokenizer.chat_template or "")
