"""The text around messages, from templates in the style of known models."""

from __future__ import annotations

import pytest

from palmette.lang.chat_template import ChatTemplate, JinjaTemplate, PlainTemplate, Role, chat_template
from palmette.lang.errors import ChatTemplateError
from palmette.runtime.program import ModelInfo

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALTERNATING = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
SYSTEM_IN_USER = (
    "{% if messages[0].role == 'system' %}{% set start = messages[0].content + '\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set start = '' %}{% set rest = messages %}{% endif %}"
    "{% for message in rest %}{{ '<' + message['role'] + '>' + (start if loop.first else '') + message['content'] }}"
    "{% endfor %}"
)
SYSTEM_IGNORED = "{% for m in messages if m.role != 'system' %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
THINKING = (
    "{% for message in messages %}{{ '<' + message['role'] + '>' }}"
    "{% if message['role'] == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}"
    "{{ message['content'] + '</s>' }}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
UNSTABLE = (
    "{% for message in messages %}{{ message['role'] + message['content'] + ('<end>' if loop.last else '<more>') }}"
    "{% endfor %}"
)


def conversation(template: ChatTemplate, *messages: tuple[Role, str]) -> str:
    """A whole conversation, put together from begins and ends."""
    text = ""
    previous: Role | None = None
    for role, content in messages:
        text += template.begin(role, previous) + content + template.end(role, previous)
        previous = role
    return text


def rendered(source: str, *messages: tuple[str, str], bos_token: str = "", eos_token: str = "") -> str:
    """The conversation as the template itself renders it."""
    from jinja2 import Environment

    return (
        Environment()
        .from_string(source)
        .render(
            messages=[{"role": role, "content": content} for role, content in messages],
            bos_token=bos_token,
            eos_token=eos_token,
        )
    )


@pytest.mark.parametrize("source", [SMOLLM2, ALTERNATING])
def test_messages_add_up_to_the_rendering(source: str) -> None:
    """Begins, contents and ends of a conversation are what the template renders for it."""
    template = JinjaTemplate(source, bos_token="<s>", eos_token="</s>")
    messages: tuple[tuple[Role, str], ...] = (
        ("user", "Hi"),
        ("assistant", "Hello!"),
        ("user", "And?"),
        ("assistant", "Well."),
    )
    assert conversation(template, *messages) == rendered(source, *messages, bos_token="<s>", eos_token="</s>")


def test_a_default_system_message_opens_the_first_message() -> None:
    """SmolLM2's template puts its own system message before a first message that is none, and only there."""
    template = JinjaTemplate(SMOLLM2)
    assert template.begin("user", None).startswith("<|im_start|>system\nYou are a helpful AI assistant")
    assert template.begin("system", None) == "<|im_start|>system\n"
    assert template.begin("user", "system") == "<|im_start|>user\n"
    assert template.begin("assistant", "user") == "<|im_start|>assistant\n"
    assert template.end("user", None) == "<|im_end|>\n"


def test_the_assistant_opens_with_the_generation_prompt() -> None:
    """A template that decorates a last assistant message differently is asked how it prompts for an answer."""
    template = JinjaTemplate(THINKING)
    assert template.begin("assistant", "user") == "<assistant>"
    assert template.begin("user", "assistant") == "<user>"
    assert template.end("assistant", "user") == "</s>"


@pytest.mark.parametrize(
    ("source", "role", "previous", "says"),
    [
        (
            ALTERNATING,
            "system",
            None,
            "refuses a system message as the first.*must alternate.*order that the model knows",
        ),
        (ALTERNATING, "user", "user", "refuses a user message after a user message"),
        (SYSTEM_IGNORED, "system", None, "no place of its own for a system message"),
        (UNSTABLE, "assistant", "user", "writes the end of a user message in another way"),
        ("{{ messages[0].content ** }}", "user", None, "is not valid Jinja"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "user", None, "refuses a user message.*unsafe"),
        ("{{ messages.append(1) }}", "user", None, "refuses a user message"),
    ],
)
def test_templates_that_cannot_be_used(source: str, role: Role, previous: Role | None, says: str) -> None:
    """A role that a template refuses, moves or closes in another way later, and unsafe code, are clear errors."""
    with pytest.raises(ChatTemplateError, match=f"(?s)the chat template of tiny.*{says}"):
        JinjaTemplate(source, name="tiny").begin(role, previous)


def test_a_system_message_that_a_template_writes_into_the_user_message() -> None:
    """Its text and the user's are one message, and still one comes after the other."""
    template = JinjaTemplate(SYSTEM_IN_USER)
    assert template.begin("system", None) == "<user>"
    assert conversation(template, ("system", "Be brief."), ("user", "Hi")) == "<user>Be brief.\nHi"
    assert template.prefix_stable


def test_functions_that_templates_use() -> None:
    """tojson does not escape for HTML, strftime_now gives a date, loop controls and generation blocks are known."""
    source = (
        "{% for message in messages %}{% generation %}{{ {'a': '<é>'} | tojson }}{{ strftime_now('%Y')[:2] }}"
        "{{ message['content'] }}{% endgeneration %}{% if loop.last %}{% break %}{% endif %}{% endfor %}"
    )
    assert JinjaTemplate(source).begin("user", None) == '{"a": "<é>"}20'


def test_models_without_a_template_get_the_plain_form() -> None:
    """ROLE: content and a line break."""
    template = chat_template(ModelInfo(name="base", context_length=8, vocab_size=8))
    assert isinstance(template, PlainTemplate)
    assert conversation(template, ("user", "Hi"), ("assistant", "Yes")) == "USER: Hi\nASSISTANT: Yes\n"


def test_each_pair_of_roles_is_probed_once() -> None:
    """The probes of one model are shared by its programs."""
    info = ModelInfo(name="m", context_length=8, vocab_size=8, chat_template=SMOLLM2)
    assert chat_template(info) is chat_template(info)


def test_a_bos_token_that_opens_every_message_is_part_of_the_message() -> None:
    """Where BOS also opens later messages, as SmolLM2's does, a conversation has no start of its own to leave out."""
    chatml = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    assert JinjaTemplate(chatml, bos_token="<|im_start|>").sequence_start == ""
    assert JinjaTemplate("{{ bos_token }}" + chatml, bos_token="<s>").sequence_start == "<s>"
    assert JinjaTemplate(chatml, bos_token="<s>").sequence_start == ""
    assert PlainTemplate().sequence_start == ""
