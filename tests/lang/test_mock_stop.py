"""Where a mock's answer ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from palmette.constrained.stop_pattern import stop_patterns
from palmette.lang.mock_stop import before_stop
from palmette.runtime.detokenizer import OutputText
from palmette.runtime.sampling_params import SamplingParams


@given(
    st.text("abé\n", max_size=12),
    st.lists(st.text("abé", min_size=1, max_size=2), max_size=2).map(tuple),
    st.sampled_from([(), ("a+b",), ("b$", "^a", "é.a")]),
)
def test_it_ends_where_a_models_text_ends(answer: str, stop: tuple[str, ...], stop_regex: tuple[str, ...]) -> None:
    """A mock's answer is cut as the engine cuts the text of a model that writes one character a token."""
    text = OutputText([char.encode() for char in answer], stop, stop_patterns(stop_regex) if stop_regex else None)
    for token_id in range(len(answer)):
        text.push(token_id)
    text.finish()
    params = SamplingParams(stop=stop, stop_regex=stop_regex)
    assert before_stop(answer, params, lambda _: True) == (text.text, text.matched)


def test_a_stop_counts_only_where_the_text_may_end() -> None:
    """The first place that may be the end wins."""
    params = SamplingParams(stop=("b",), stop_regex=("cc",))
    assert before_stop("abbcc", params, lambda kept: len(kept) == 2) == ("ab", "b")
    assert before_stop("abbcc", params, lambda kept: len(kept) == 3) == ("abb", "cc")
    assert before_stop("abbcc", params, lambda _: False) == ("abbcc", None)
