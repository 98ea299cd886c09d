"""Contexts: the same text gives the same tokens in however many nodes it came, and every token has its owner."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny_models import write_tiny_model

from palmette.runtime.context import NO_OWNER, Context, shared_length
from palmette.runtime.errors import RequestError
from palmette.runtime.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_tiny_model(tmp_path_factory.mktemp("tiny")))


@given(text=st.text(min_size=1, max_size=40), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_text_in_pieces_is_encoded_as_one(tokenizer: Tokenizer, text: str, cuts: list[int]) -> None:
    """Splitting constant text over nodes changes no token."""
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    context = Context()
    for owner, (start, stop) in enumerate(itertools.pairwise(borders)):
        context = context.with_text(text[start:stop], owner=owner)
    whole = Context().with_text(text, owner=0).encode(tokenizer)
    assert context.encode(tokenizer).ids.tolist() == whole.ids.tolist()


def test_half_a_surrogate_pair_is_refused() -> None:
    """The error names what no tokenizer could encode, and where it stands."""
    with pytest.raises(RequestError, match=r"holds '\\ud83d' at place 2"):
        Context().with_text("ab\ud83d", owner=0)


def test_generated_tokens_stay_as_they_are(tokenizer: Tokenizer) -> None:
    """Ids of an output are not encoded again, and text after them starts anew."""
    prompt = Context().with_text("The quick", owner=0).encode(tokenizer)
    odd = [tokenizer.encode_text(letter)[0] for letter in "the"]
    after = Context().with_output(prompt, odd, "", owner=1).with_text(" fox", owner=2).encode(tokenizer)
    assert after.ids.tolist() == [*prompt.ids, *odd, *tokenizer.encode_text(" fox")]
    assert after.owners.tolist()[len(prompt.ids) :][:3] == [1, 1, 1]


def test_the_tail_of_a_cut_token_joins_the_text_after_it(tokenizer: Tokenizer) -> None:
    """What a stop string left of a token is constant text of the next segment."""
    prompt = Context().with_text("a", owner=0).encode(tokenizer)
    after = Context().with_output(prompt, [], " th", owner=1).with_text("e", owner=2).encode(tokenizer)
    assert after.ids.tolist() == [*prompt.ids, *tokenizer.encode_text(" the")]


def test_an_empty_context_is_the_start_token(tokenizer: Tokenizer) -> None:
    """There is always a token to begin with, and it belongs to no node."""
    prompt = Context().encode(tokenizer)
    assert prompt.ids.tolist() == [tokenizer.start_id]
    assert prompt.owners.tolist() == [NO_OWNER]


def test_special_tokens_come_from_templates_only(tokenizer: Tokenizer) -> None:
    """A special token's text is that token in a template, and ordinary text in a user's words."""
    template = Context().with_text("<|im_end|>", owner=0, template=True).encode(tokenizer)
    user = Context().with_text("<|im_end|>", owner=0).encode(tokenizer)
    assert len(template.ids) == 1
    assert len(user.ids) > 1
    assert template.ids[0] not in user.ids


def test_shared_length() -> None:
    """The number of equal tokens at the beginning of two sequences."""
    one, two = np.array([1, 2, 3], np.int32), np.array([1, 2, 4, 5], np.int32)
    assert shared_length(one, two) == 2
    assert shared_length(one, one[:1]) == 1
    assert shared_length(one[:0], two) == 0
