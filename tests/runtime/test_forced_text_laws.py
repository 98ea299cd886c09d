"""Laws of forced text: its tokens are the tokenizer's own for every text that may yet come, whatever the tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny_models import tiny_tokenizer_spec
from tests.tokenizers_of_all_forms import SENTENCES, tokenizer_of

from palmette.constrained import Grammar, compile_grammar
from palmette.runtime import forced_text
from palmette.runtime.forced_text import ForcedText
from palmette.runtime.request import Request
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.token_bytes import byte_marks
from palmette.runtime.tokenizer import Tokenizer

LETTERS = "abc "
randoms = st.integers(0, 2**32 - 1).map(Random)


def spelled(tokenizer: Tokenizer, ids: Sequence[int]) -> list[bytes]:
    return [tokenizer.token_bytes[token] or b"" for token in ids]


def random_spelling(tokenizer: Tokenizer, text: str, random: Random) -> list[int]:
    """Any tokens that spell a text, cut in the middle of characters too."""
    data, ids = text.encode(), []
    while data:
        fitting = [i for i, token in enumerate(tokenizer.token_bytes) if token and data.startswith(token)]
        ids.append(random.choice(fitting))
        data = data[len(tokenizer.token_bytes[ids[-1]] or b"") :]
    return ids


def random_byte_pairs(folder: Path, random: Random) -> Tokenizer:
    """A tokenizer with random merges of a few letters, so that merges often stand in each other's way."""
    spec = json.loads(json.dumps(tiny_tokenizer_spec()))
    model, marks = spec["model"], byte_marks()
    vocabulary = {text: i for text, i in model["vocab"].items() if len(text) == 1 or text.startswith("<|")}
    parts = [marks[ord(letter)] for letter in LETTERS]
    merges: list[tuple[str, str]] = []
    for _ in range(30):
        left, right = random.choice(parts), random.choice(parts)
        if len(left + right) <= 4 and left + right not in vocabulary:
            vocabulary[left + right] = max(vocabulary.values()) + 1
            merges.append((left, right))
            parts.append(left + right)
    random.shuffle(merges)
    spec["model"] |= {"vocab": vocabulary, "merges": merges}
    spec["pre_tokenizer"]["pretokenizers"][-1]["use_regex"] = random.random() < 0.5
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    return Tokenizer.load(folder)


def check_law(tokenizer: Tokenizer, texts: Sequence[str], random: Random) -> int:
    """Look at what is forced everywhere in each of `texts`, which are all that a grammar allows; how often some is."""
    vocabulary = tokenizer.vocabulary(len(tokenizer.token_bytes))
    compiled, force = compile_grammar(Grammar.choices(texts), vocabulary), ForcedText(tokenizer)
    usual = {text: tokenizer.spell(text) for text in texts}
    count = 0
    for text in texts:
        output = usual[text] if random.random() < 0.5 else random_spelling(tokenizer, text, random)
        request = Request(
            id="r", kind="generate", prompt_ids=np.array([1], np.int32), params=SamplingParams(max_tokens=99)
        )
        request.matcher = compiled.matcher()
        for token in output:
            before = b"".join(spelled(tokenizer, request.output_after(0)))
            tokens = list(force(request))
            assert tokens == list(ForcedText(tokenizer)(request)), (
                "what is known of other states and ends is told apart"
            )
            count += bool(tokens)
            for after in (each for each in texts if tokens and each.encode().startswith(before)):
                if after.encode()[len(before) :].startswith(b"".join(spelled(tokenizer, tokens))):
                    at = [len(b"".join(spelled(tokenizer, usual[after][:i]))) for i in range(len(usual[after]))]
                    assert len(before) in at, (after, before, spelled(tokenizer, tokens))
                    begin = at.index(len(before))
                    assert usual[after][begin : begin + len(tokens)] == tokens, (after, before)
            request.matcher.accept(token)
            request.append(token)
    return count


def random_texts(part: Callable[[], str], random: Random) -> list[str]:
    """Texts with the same middle after different beginnings and before different ends."""
    heads, ends = ([part() for _ in range(random.randint(1, most))] for most in (2, 3))
    middle = "".join(part() for _ in range(random.randint(1, 3)))
    return sorted({head + middle + end for head in heads for end in ends})


@settings(max_examples=40)
@given(random=randoms)
def test_random_merges_never_change_what_was_forced(tmp_path_factory: pytest.TempPathFactory, random: Random) -> None:
    """Merges across the end of forced text, and those that they let happen before it, are left to the model."""
    tokenizer = random_byte_pairs(tmp_path_factory.mktemp("tokenizer"), random)
    for _ in range(6):
        texts = random_texts(lambda: "".join(random.choices(LETTERS, k=random.randint(1, 4))), random)
        check_law(tokenizer, texts, random)


def part_of_a_sentence(random: Random) -> str:
    sentence = random.choice(SENTENCES)
    begin = random.randrange(len(sentence))
    others = (" ", "  ", "   ", "1", "12", '"', '", "', "é", "日", "日本", "\n", "\n  ")
    return random.choice([sentence[begin : begin + random.randint(1, 6)], random.choice(others)])


@pytest.mark.parametrize("form", ["tiktoken", "sentencepiece bpe", "sentencepiece unigram", "symbols"])
@settings(max_examples=50)
@given(random=randoms)
def test_tokenizers_of_all_forms_would_spell_what_was_forced(form: str, random: Random) -> None:
    """Byte pairs, a unigram model, and symbols that text may spell, also after parts of characters."""
    tokenizer = tokenizer_of(form)
    texts = random_texts(lambda: part_of_a_sentence(random), random)
    if all(b"".join(spelled(tokenizer, tokenizer.spell(text))) == text.encode() for text in texts):
        check_law(tokenizer, texts, random)


@pytest.mark.parametrize("form", ["tiktoken", "sentencepiece bpe", "sentencepiece unigram", "symbols"])
def test_most_of_what_can_be_forced_is(form: str) -> None:
    """The laws above are not kept by forcing nothing."""
    texts = ["The quick brown fox jumps over the lazy dog", "The quick brown fox sleeps"]
    assert check_law(tokenizer_of(form), texts, Random(0)) > 5


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever grammars there are; what was dropped is found out again."""
    monkeypatch.setattr(forced_text, "KEPT_BYTES", 5_000)
    tokenizer = tokenizer_of("tiktoken")
    vocabulary, force = tokenizer.vocabulary(len(tokenizer.token_bytes)), ForcedText(tokenizer)
    grammars = [compile_grammar(Grammar.choices([f"The quick brown {i}"]), vocabulary) for i in range(9)]
    for grammar in grammars * 2:
        request = Request(
            id="r", kind="generate", prompt_ids=np.array([1], np.int32), params=SamplingParams(max_tokens=99)
        )
        request.matcher = grammar.matcher()
        assert force(request)
        for token in tokenizer.spell("The quick brown "):
            request.matcher.accept(token)
            request.append(token)
            force(request)
        kept = sum(len(known.forced) + len(known.tokens) for known in force._known.values())
        assert kept <= 5_000 / forced_text._ENTRY_BYTES + 2
