"""Grammars in transformers' `generate`, without Palmette's runtime."""

from __future__ import annotations

import json
import re

import pytest
import tokenizers
import torch
import transformers
from tests.tiny_models import tiny_tokenizer_spec

from palmette.constrained import (
    Grammar,
    GrammarError,
    LogitsProcessor,
    TokenRejectedError,
    Vocabulary,
    VocabularyError,
    compile_grammar,
    matches,
)

WIDTH = 400  # more logits than tokens


@pytest.fixture(scope="module")
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    spec = tiny_tokenizer_spec()
    known = tokenizers.Tokenizer.from_str(json.dumps(spec))
    special = next(added["content"] for added in spec["added_tokens"] if added["special"])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=known, eos_token=special, pad_token=special)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: transformers.PreTrainedTokenizerFast) -> Vocabulary:
    return Vocabulary.of(tokenizer, size=WIDTH)


@pytest.fixture(scope="module")
def model(tokenizer: transformers.PreTrainedTokenizerFast) -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WIDTH, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    return transformers.LlamaForCausalLM(config).eval()


def generate(
    model: transformers.LlamaForCausalLM,
    tokenizer: transformers.PreTrainedTokenizerFast,
    processor: LogitsProcessor,
    prompts: list[str],
    **options: object,
) -> list[str]:
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
    output = model.generate(**inputs, logits_processor=[processor], **options)
    return list(tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


GRAMMARS = [
    Grammar.regex("(yes|no), [a-z]{3}é"),
    Grammar.choices(["a", "ab", "abc"]),
    Grammar.json_schema({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}),
]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
def test_generate_matches(
    grammar: Grammar,
    model: transformers.LlamaForCausalLM,
    tokenizer: transformers.PreTrainedTokenizerFast,
    vocabulary: Vocabulary,
) -> None:
    """Every sequence of a sampled batch matches in full, whichever ends first."""
    processor = LogitsProcessor(grammar, vocabulary)
    texts = generate(
        model, tokenizer, processor, ["Hello", "Hi there"], max_new_tokens=60, do_sample=True, num_return_sequences=4
    )
    assert len(texts) == 8
    assert [text for text in texts if not matches(grammar, text)] == []


@pytest.mark.parametrize("room", [6, 9, 30])
def test_always_complete(
    room: int,
    model: transformers.LlamaForCausalLM,
    tokenizer: transformers.PreTrainedTokenizerFast,
    vocabulary: Vocabulary,
) -> None:
    """With `max_new_tokens` an answer that could go on for ever is complete in time."""
    grammar = Grammar.regex(r"<([a-z ]|é)+>")
    for seed in range(5):
        torch.manual_seed(seed)
        processor = LogitsProcessor(grammar, vocabulary, max_new_tokens=room)
        (text,) = generate(model, tokenizer, processor, ["Hello"], max_new_tokens=room, do_sample=True)
        assert matches(grammar, text), text


def test_too_little_room(vocabulary: Vocabulary) -> None:
    """What no match fits is refused before the first token."""
    with pytest.raises(GrammarError, match="takes at least 10 tokens, but max_new_tokens is 4"):
        LogitsProcessor(Grammar.regex("zqzqzqzqzq"), vocabulary, max_new_tokens=4)


def test_masks(vocabulary: Vocabulary) -> None:
    """Allowed scores stay as they are, all others are minus infinity, past the vocabulary too."""
    processor = LogitsProcessor(Grammar.regex("q?"), vocabulary)
    scores = torch.arange(2 * (WIDTH + 9), dtype=torch.float32).reshape(2, -1)
    prompt = torch.tensor([[5, 6], [7, 8]])
    q = vocabulary.token_bytes.index(b"q")
    (end,) = vocabulary.end_ids
    masked = processor(prompt, scores)
    for row in range(2):
        assert masked[row].isfinite().nonzero().flatten().tolist() == sorted([q, end])
        assert masked[row, q] == scores[row, q]
    masked = processor(torch.tensor([[5, 6, q], [7, 8, end]]), scores)
    masked_after = processor(torch.tensor([[5, 6, q, end], [7, 8, end, 3]]), scores)  # 3: padding
    for last in (masked, masked_after):
        assert [row.isfinite().nonzero().flatten().tolist() for row in last] == [[end], [end]]


def test_misuse(vocabulary: Vocabulary) -> None:
    """Beams, other batches and tokens that no mask allowed are named."""
    scores = torch.zeros(2, WIDTH)
    q = vocabulary.token_bytes.index(b"q")
    processor = LogitsProcessor(Grammar.regex("[pq]+"), vocabulary)
    processor(torch.tensor([[5], [5]]), scores)
    processor(torch.tensor([[5, q], [5, q - 1]]), scores)
    with pytest.raises(ValueError, match=r"row 0 .* beam search"):
        processor(torch.tensor([[5, q - 1, q], [5, q, q]]), scores)
    with pytest.raises(ValueError, match="other sequences than before"):
        processor(torch.tensor([[5]]), scores[:1])
    processor.reset()
    processor(torch.tensor([[5]]), scores[:1])
    with pytest.raises(TokenRejectedError):
        processor(torch.tensor([[5, q + 1]]), scores[:1])
    compiled = compile_grammar(Grammar.regex("a"), vocabulary)
    assert LogitsProcessor(compiled).grammar is compiled
    with pytest.raises(ValueError, match="needs the vocabulary"):
        LogitsProcessor(Grammar.regex("a"))
    with pytest.raises(ValueError, match="another vocabulary"):
        LogitsProcessor(compiled, Vocabulary([b"a"]))
    with pytest.raises(ValueError, match="names no end token"):
        LogitsProcessor(Grammar.regex("a"), Vocabulary([b"a"]))


def test_vocabulary_of_tokenizers(tokenizer: transformers.PreTrainedTokenizerFast, vocabulary: Vocabulary) -> None:
    """Both packages' tokenizers give the same bytes; ends are the tokenizer's or those that are named."""
    bare = Vocabulary.of(tokenizer.backend_tokenizer, end_ids=[3, 4])
    assert (bare.token_bytes, bare.end_ids) == (vocabulary.token_bytes, frozenset({3, 4}))
    assert vocabulary.end_ids == {tokenizer.eos_token_id}
    assert Vocabulary.of(tokenizer, end_ids=7).end_ids == {7}
    text = "Hello é, world"
    ids = tokenizer(text)["input_ids"]
    assert b"".join(vocabulary.token_bytes[i] or b"" for i in ids).decode() == text
    with pytest.raises(VocabularyError, match=re.escape("str is no fast tokenizer")):
        Vocabulary.of("gpt2")
