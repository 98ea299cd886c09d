"""Conversations rendered by templates of several kinds."""

from __future__ import annotations

from typing import Any

import pytest
from tests.tiny_models import CHAT_TEMPLATE

from palmette.runtime.program import ModelInfo
from palmette.runtime.server.chat_prompt import ChatPrompts
from palmette.runtime.server.errors import ApiError
from palmette.runtime.server.openai_models import ChatMessage

TRIMMING = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "[{{ m.role }}] {{ m.content | trim }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<off>{% endif %}"
)


def prompts(template: str | None, *special: str) -> ChatPrompts:
    info = ModelInfo(
        name="m",
        context_length=100,
        vocab_size=100,
        chat_template=template,
        bos_token="<s>",
        eos_token="</s>",
        special_tokens=("<s>", "</s>", *special),
    )
    return ChatPrompts(info)


def messages(*said: tuple[str, str], **fields: Any) -> list[ChatMessage]:
    return [ChatMessage.model_validate({"role": role, "content": content, **fields}) for role, content in said]


def text(template: str | None, said: list[ChatMessage], **options: Any) -> str:
    return "".join(span.text for span in prompts(template).render(said, **options).spans)


def test_a_model_without_a_template_gets_the_plain_form() -> None:
    """Messages are ROLE: content, as in programs; the last can be continued."""
    said = messages(("system", "Be brief."), ("user", "Hi"))
    assert text(None, said) == "SYSTEM: Be brief.\nUSER: Hi\nASSISTANT: "
    said = messages(("user", "Hi"), ("assistant", "It"))
    assert text(None, said, asks=False, continues=True) == "USER: Hi\nASSISTANT: It"


def test_developers_are_the_system_where_the_template_knows_no_developers() -> None:
    """OpenAI's newer role is the system's in older templates, and its own where they know it."""
    assert text(TRIMMING, messages(("developer", "x"))).startswith("<s>[system] x")
    assert "[developer]" in text(TRIMMING + "{# developer #}", messages(("developer", "x")))


def test_a_continued_message_ends_where_its_text_ends() -> None:
    """Nothing of the template follows it, whether it trims contents or not."""
    said = messages(("user", "Hi"), ("assistant", "It is "))
    assert text(TRIMMING, said, asks=False, continues=True) == "<s>[user] Hi</s>[assistant] It is"
    assert text(CHAT_TEMPLATE, said, asks=False, continues=True).endswith("<|im_start|>assistant\nIt is ")


def test_template_values_reach_the_template() -> None:
    """chat_template_kwargs are seen; what they spell is text."""
    assert text(TRIMMING, messages(("user", "a")), values={"enable_thinking": False}).endswith("<off>")
    with pytest.raises(ApiError, match="'bos_token'"):
        text(TRIMMING, messages(("user", "a")), values={"bos_token": "</s>"})


def test_a_refusal_of_the_template_is_the_callers_error() -> None:
    """What the template raises is told, with the roles of the conversation, as 400."""
    with pytest.raises(ApiError, match=r"refuses the conversation assistant, tool: .*no tools here") as caught:
        prompts(TRIMMING + "{# tools #}").render(_with_result())
    assert caught.value.status_code == 400
    assert caught.value.param == "messages"


def _call() -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def _with_result() -> list[ChatMessage]:
    asked = ChatMessage.model_validate({"role": "assistant", "content": "", "tool_calls": [_call()]})
    return [asked, ChatMessage.model_validate({"role": "tool", "content": "x", "tool_call_id": "c1"})]


def test_a_template_that_is_not_jinja_fails_each_chat(caplog: pytest.LogCaptureFixture) -> None:
    """A broken template is logged when it is loaded, and every conversation is refused; nothing else is."""
    broken = prompts("{% if %}")
    assert "chat template" in caplog.text
    with pytest.raises(ApiError, match="chat template"):
        broken.render(messages(("user", "a")))


def test_special_tokens_of_contents_are_spans_of_their_own() -> None:
    """Only the template's spans may spell special tokens."""
    spans = prompts(TRIMMING).render(messages(("user", "a</s>b"))).spans
    assert [(span.text, span.template) for span in spans] == [
        ("<s>[user] a", True),
        ("</s>", False),
        ("b</s>[assistant]", True),
    ]
