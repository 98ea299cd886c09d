"""Forced text: the tokens the tokenizer would give, never past where a legal continuation could straddle."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.tiny_models import write_tiny_tokenizer
from tests.wire import run_tree

from palmette.constrained import Grammar, Vocabulary, compile_grammar
from palmette.runtime import launch
from palmette.runtime.batch import Int32Array
from palmette.runtime.engine import Engine
from palmette.runtime.forced_text import TAIL_TOKENS, ForcedText
from palmette.runtime.program import Generate, Generated, Node, Text
from palmette.runtime.request import Request
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.tokenizer import Tokenizer

OBJECT = '\\{"name": "[a-z]{1,4}", "age": [0-9]{1,2}\\}'


def request_at(tokenizer: Tokenizer, pattern: str, output: Sequence[int]) -> Request:
    """A request held to `pattern` after it has given `output`."""
    vocabulary: Vocabulary = tokenizer.vocabulary(len(tokenizer.token_bytes))
    ids = tokenizer.encode_text("x")
    request = Request(id="r", kind="generate", prompt_ids=_array(ids), params=SamplingParams(max_tokens=100))
    request.matcher = compile_grammar(Grammar.regex(pattern), vocabulary).matcher()
    for token in output:
        request.matcher.accept(token)
        request.append(token)
    return request


def _array(ids: Sequence[int]) -> Int32Array:
    return np.asarray(ids, dtype=np.int32)


def forced_text(tokenizer: Tokenizer, pattern: str, output: Sequence[int] = ()) -> str:
    tokens = ForcedText(tokenizer)(request_at(tokenizer, pattern, output))
    return b"".join(tokenizer.token_bytes[token] or b"" for token in tokens).decode()


def test_a_constant_is_forced_whole_as_the_tokenizer_spells_it(tiny_engine: Engine) -> None:
    """Where the grammar ends with the forced text, all of it is taken, in canonical tokens."""
    tokenizer = tiny_engine.tokenizer
    request = request_at(tokenizer, "The quick brown fox", ())
    assert list(ForcedText(tokenizer)(request)) == tokenizer.encode_text("The quick brown fox")


def test_the_tokens_that_a_continuation_could_straddle_are_left_to_the_model(tiny_engine: Engine) -> None:
    """Before free text, the last token stays open where a longer one could take its place."""
    tokenizer = tiny_engine.tokenizer
    assert forced_text(tokenizer, "the [a-z]+") == "the"  # " t", " f" and others begin with the space
    assert forced_text(tokenizer, "the[0-9]") == "the"


def test_nothing_is_forced_where_the_output_would_be_cut_in_another_way(tiny_engine: Engine) -> None:
    """Where the tokenizer would join the end of the output with what is forced, the model goes on by itself."""
    tokenizer = tiny_engine.tokenizer
    letters = [tokenizer.encode_text(letter)[0] for letter in "th"]
    assert tokenizer.encode_text("the") != [*letters, *tokenizer.encode_text("e")]
    assert forced_text(tokenizer, "the", letters) == ""


def test_text_is_forced_after_an_unusual_spelling(tiny_engine: Engine) -> None:
    """What follows a place where the tokenizer cuts does not depend on how the model spelled what is before it."""
    tokenizer = tiny_engine.tokenizer
    letters = [tokenizer.encode_text(letter)[0] for letter in "the"]
    assert tokenizer.encode_text("the") != letters
    assert forced_text(tokenizer, "the quick brown fox", letters) == " quick brown fox"


def test_text_is_forced_after_a_tail_that_begins_inside_a_character(tiny_engine: Engine) -> None:
    """The tail is cut by tokens; the rest of a character at its beginning says nothing about its end."""
    tokenizer = tiny_engine.tokenizer
    pieces = [tokenizer.token_bytes.index(bytes([byte])) for byte in "日".encode() * 4]
    assert len(pieces) > TAIL_TOKENS
    assert forced_text(tokenizer, "日{4} quick brown fox", pieces) == " quick brown fox"


def test_forced_text_does_not_split_a_character(tiny_engine: Engine) -> None:
    """Bytes that all continuations share may end inside a character; only whole characters are forced."""
    assert forced_text(tiny_engine.tokenizer, "a(é|è)") in ("", "a")


def test_nothing_is_forced_at_the_end(tiny_engine: Engine) -> None:
    """A complete answer forces nothing, and does not loop."""
    tokenizer = tiny_engine.tokenizer
    assert forced_text(tokenizer, "a*", tokenizer.encode_text("a")) == ""
    assert forced_text(tokenizer, "ab", tokenizer.encode_text("ab")) == ""


def test_text_that_the_tokenizer_would_change_is_not_forced(tmp_path: Path) -> None:
    """A tokenizer that normalizes to NFC would spell other bytes than the grammar asks for: the model spells them."""
    write_tiny_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": {"type": "NFC"}}))
    tokenizer = Tokenizer.load(tmp_path)
    assert forced_text(tokenizer, "cafe\u0301") == ""
    assert forced_text(tokenizer, "caf\u00e9") == "caf\u00e9"


@pytest.mark.parametrize("seed", range(8))
def test_forced_text_on_and_off_give_the_same_kind_of_answer(tiny_engine: Engine, seed: int) -> None:
    """With forcing on the answer matches in full, and its tokens are counted."""
    params = SamplingParams(temperature=1, seed=seed, max_tokens=60)
    nodes: list[Node] = [Text(0, None, "x"), Generate(1, 0, params, Grammar.regex(OBJECT))]
    event = run_tree(tiny_engine, nodes).done[1]
    assert isinstance(event, Generated)
    completion = event.completions[0]
    assert completion.forced_tokens > 0
    assert completion.text.startswith('{"name": "')
    assert completion.text.endswith("}")


def test_a_grammar_with_one_text_gives_it_on_and_off(tiny_engine: Engine, tiny_model_folder: object) -> None:
    """Where the grammar allows one text only, forcing changes how it is made and not what it is."""
    params = SamplingParams(temperature=0, max_tokens=60)
    nodes: list[Node] = [Text(0, None, "x"), Generate(1, 0, params, Grammar.regex("It is what it is"))]
    with launch(str(tiny_model_folder), max_total_tokens=1000, jump_forward=False, processes=False) as plain:
        without = run_tree(plain, nodes).done[1]
    forced = run_tree(tiny_engine, nodes).done[1]
    assert isinstance(forced, Generated)
    assert isinstance(without, Generated)
    assert forced.completions[0].text == without.completions[0].text == "It is what it is"
    assert (forced.completions[0].forced_tokens > 0, without.completions[0].forced_tokens) == (True, 0)


@pytest.mark.parametrize("pattern", [OBJECT, "(yes|no), (it is|they are) [a-z]{2,5}", r'\[("[ab]{1,3}", ){3}null\]'])
def test_answers_match_on_and_off(tiny_engine: Engine, tiny_model_folder: object, pattern: str) -> None:
    """With forcing on and off the answer matches in full, and what was forced is counted."""
    params = SamplingParams(temperature=0, max_tokens=60)
    nodes: list[Node] = [Text(0, None, "x"), Generate(1, 0, params, Grammar.regex(pattern))]
    with launch(str(tiny_model_folder), max_total_tokens=1000, jump_forward=False, processes=False) as plain:
        without = run_tree(plain, nodes).done[1]
    forced = run_tree(tiny_engine, nodes).done[1]
    assert isinstance(forced, Generated)
    assert isinstance(without, Generated)
    for event in (forced, without):
        assert re.fullmatch(pattern, event.completions[0].text)
        usage = event.completions[0]
        assert 0 <= usage.forced_tokens <= usage.completion_tokens
    assert without.completions[0].forced_tokens == 0


def test_forced_tokens_have_logprobs(tiny_engine: Engine) -> None:
    """Where log-probabilities are asked for, every token has its own, whether it was forced or sampled."""
    params = SamplingParams(temperature=0, max_tokens=60, logprobs=1)
    nodes: list[Node] = [Text(0, None, "x"), Generate(1, 0, params, Grammar.regex("It is what it is"))]
    event = run_tree(tiny_engine, nodes).done[1]
    assert isinstance(event, Generated)
    completion = event.completions[0]
    assert completion.text == "It is what it is"
    assert completion.forced_tokens > 0
    assert completion.logprobs is not None
    assert len(completion.logprobs) == completion.completion_tokens
