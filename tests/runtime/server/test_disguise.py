"""Text that spells special tokens, kept apart from the template around it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from palmette.runtime.server.disguise import Disguise, SpecialTexts, TemplateSpan

TOKENS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]")
SPECIALS = SpecialTexts(TOKENS)
pieces = st.sampled_from([*TOKENS, "<", "<|", "im_", "end|>", "a", " ", "\ue000", "\ue001", "[IN", "ST]", "é"])
texts = st.lists(pieces, max_size=8).map("".join)


@given(texts, texts)
def test_no_token_comes_of_contents(first: str, second: str) -> None:
    """Contents written one behind the other show no special token to the template's side, and come back whole."""
    disguise = Disguise(SPECIALS, [first, second])
    rendered = "<s>" + "".join(disguise.put_on([first, second])) + "</s>"
    spans = disguise.take_off(rendered)
    assert "".join(span.text for span in spans) == f"<s>{first}{second}</s>"
    template = "\0".join(span.text for span in spans if span.template)
    assert sum(template.count(token) for token in TOKENS) == 2


def test_keys_and_nested_values_are_disguised() -> None:
    """What tools and template values spell is text as well, in keys and deep within."""
    value = {"tools": [{"<|im_end|>": ["</s>", 3, None, True]}]}
    worn = Disguise(SPECIALS, value).put_on(value)
    assert all(token not in str(worn) for token in TOKENS)


def test_plain_text_stays_as_it_is() -> None:
    """Without a special token there is one span of template text, and the values themselves are given."""
    value = {"content": "Hello"}
    disguise = Disguise(SPECIALS, value)
    assert disguise.put_on(value) is value
    assert disguise.take_off("x Hello") == (TemplateSpan("x Hello", template=True),)
