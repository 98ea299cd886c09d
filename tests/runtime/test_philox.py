"""Philox4x32-10 against the known answers of the Random123 distribution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palmette.runtime.philox import philox4x32, signed_seed, uniform

_KNOWN_ANSWERS = (
    # counter, key, words: the "philox4x32 10" lines of Random123's tests/kat_vectors
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
)
_WORD = 0xFFFFFFFF
_SEEDS = st.integers(0, (1 << 64) - 1)


def _words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def _philox_by_integers(counter: list[int], key: list[int]) -> list[int]:
    """The paper's definition on Python integers, which cannot overflow."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & _WORD, (first >> 32) ^ c3 ^ k1, first & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return [c0, c1, c2, c3]


@pytest.mark.parametrize(("counter", "key", "words"), _KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, words: str) -> None:
    """The published test vectors come out bit for bit."""
    out = philox4x32(torch.tensor(_words(counter))[:, None], torch.tensor(_words(key))[:, None])
    assert out[:, 0].tolist() == _words(words)


@given(st.lists(st.tuples(*[st.integers(0, _WORD)] * 6), min_size=1, max_size=5))
def test_every_column_equals_integer_arithmetic(columns: list[tuple[int, ...]]) -> None:
    """Wrapping int64 products give the same words as exact integers, in each column on its own."""
    numbers = torch.tensor(columns).T
    out = philox4x32(numbers[:4], numbers[4:]).T.tolist()
    assert out == [_philox_by_integers(list(column[:4]), list(column[4:])) for column in columns]


@given(_SEEDS, st.integers(0, 1 << 31))
def test_uniform_is_the_first_53_bits_of_the_stream(seed: int, position: int) -> None:
    """A uniform number is made of words 0 and 1 at counter (position, draw, 0, 0) under the 64-bit seed."""
    words = _philox_by_integers([position, 3, 0, 0], [seed & _WORD, seed >> 32])
    number = uniform(torch.tensor([signed_seed(seed)]), torch.tensor([position]), draw=3).item()
    assert number == ((words[0] >> 5 << 26) | (words[1] >> 6)) / 2**53
    assert 0 <= number < 1


@given(_SEEDS)
def test_signed_seed_keeps_the_bits(seed: int) -> None:
    """Every 64-bit seed has its own int64."""
    assert -(1 << 63) <= signed_seed(seed) < 1 << 63
    assert signed_seed(seed) % (1 << 64) == seed


def test_uniform_is_spread_evenly() -> None:
    """20,000 positions of one seed fill 20 bins evenly: chi-square with 19 degrees of freedom stays below 50."""
    numbers = uniform(torch.full((20_000,), 7), torch.arange(20_000))
    counts = torch.histc(numbers.float(), bins=20, min=0, max=1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 50


def test_seed_position_and_draw_each_change_the_number() -> None:
    """No two of a grid of seeds, positions and draws share a number."""
    seeds, positions = torch.arange(20).repeat_interleave(20), torch.arange(20).repeat(20)
    numbers = torch.cat([uniform(seeds, positions, draw) for draw in range(3)])
    assert len(set(numbers.tolist())) == len(numbers)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_the_same_words_on_a_gpu() -> None:
    """Streams are identical on CPU and GPU."""
    seeds, positions = torch.arange(-500, 500), torch.arange(1000)
    assert torch.equal(uniform(seeds, positions), uniform(seeds.cuda(), positions.cuda()).cpu())
