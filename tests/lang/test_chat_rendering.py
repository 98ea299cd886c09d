"""Whole conversations, rendered anew: the same text as message by message where a template allows that."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lang import chat_templates
from tests.lang.test_chat_template import SMOLLM2, SYSTEM_IGNORED, THINKING, UNSTABLE

from palmette.lang.chat_rendering import Message, TemplateSpan
from palmette.lang.chat_template import JinjaTemplate, PlainTemplate, Role, chat_template
from palmette.lang.errors import ChatTemplateError
from palmette.runtime.program import ModelInfo

TOKENS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
TOOL = json.dumps(
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a town.",
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
        },
    }
)
STABLE = ("CHATML", "LLAMA2", "LLAMA3", "GEMMA", "GEMMA3", "MISTRAL", "PHI3", "QWEN25")
WITHOUT_SYSTEM = ("GEMMA", "MISTRAL")
SAID = "Where?"


@functools.cache
def template_of(name: str, *, tools: tuple[str, ...] = ()) -> JinjaTemplate:
    source = getattr(chat_templates, name)
    return JinjaTemplate(source, name="tiny", bos_token="<s>", eos_token="</s>", special_tokens=TOKENS, tools=tools)


def text_of(spans: tuple[TemplateSpan, ...]) -> str:
    return "".join(span.text for span in spans)


def published(name: str, messages: list[Message], *, asks: bool = False, tools: Any = None) -> str:
    """What the model's users get from transformers' way to render."""
    from transformers.utils.chat_template_utils import render_jinja_template

    conversation = [{"role": role, "content": content} for role, content in messages]
    rendered, _ = render_jinja_template(
        conversations=[conversation],
        tools=tools,
        chat_template=getattr(chat_templates, name),
        add_generation_prompt=asks,
        bos_token="<s>",
        eos_token="</s>",
    )
    return str(rendered[0])


said = st.text(alphabet="abc \n<>|é語😀'\"{}", min_size=1, max_size=12).filter(lambda text: text == text.strip())


@st.composite
def conversations(draw: st.DrawFn, *, system: bool) -> list[Message]:
    """Turns of user and assistant, at most one system message before them."""
    turns: list[Message] = [("system", draw(said))] if system and draw(st.booleans()) else []
    roles: tuple[Role, ...] = ("user", "assistant")
    return turns + [(roles[i % 2], draw(said)) for i in range(draw(st.integers(1, 5)))]


@pytest.mark.parametrize("name", STABLE)
@given(data=st.data())
def test_a_stable_template_renders_the_sum_of_its_messages(name: str, data: st.DataObject) -> None:
    """Begins, contents and ends of any conversation are the text that is rendered anew, the next role opened."""
    template = template_of(name)
    messages = data.draw(conversations(system=name not in WITHOUT_SYSTEM))
    text, previous = "", None
    for role, content in messages:
        text += template.begin(role, previous) + content + template.end(role, previous)
        previous = role
    assert template.prefix_stable
    assert text_of(template.render(messages, None)) == text
    following: Role = "user" if previous == "assistant" else "assistant"
    assert text_of(template.render(messages, following)) == text + template.begin(following, previous)


@pytest.mark.parametrize("name", [*STABLE, "QWEN3", "MISTRAL_SYSTEM_LAST"])
def test_an_answer_is_asked_for_as_users_of_the_model_do(name: str) -> None:
    """The text before an answer is what transformers gives for it, and the space that Llama 2's answers begin with."""
    messages: list[Message] = [("user", "Hi"), ("assistant", "Hello!"), ("user", SAID)]
    if name not in WITHOUT_SYSTEM:
        messages.insert(0, ("system", "Be brief."))
    asked = text_of(template_of(name).render(messages, "assistant"))
    assert asked == published(name, messages, asks=True) + (" " if name == "LLAMA2" else "")


@pytest.mark.parametrize("name", ["LLAMA3", "QWEN25", "QWEN3", "MISTRAL_SYSTEM_LAST"])
def test_tools_are_written_as_users_of_the_model_do(name: str) -> None:
    """Templates that take tools get them parsed, and say that they take them."""
    template = template_of(name, tools=(TOOL,))
    asked = text_of(template.render([("user", SAID)], "assistant"))
    assert "weather" in asked
    assert asked == published(name, [("user", SAID)], asks=True, tools=[json.loads(TOOL)])
    assert template.takes_tools


@pytest.mark.parametrize("name", ["CHATML", "LLAMA2", "GEMMA", "PHI3"])
def test_templates_without_tools_say_so(name: str) -> None:
    """Their rendering is the same with tools."""
    assert not template_of(name, tools=(TOOL,)).takes_tools
    assert template_of(name, tools=(TOOL,)).begin("user", None) == template_of(name).begin("user", None)


def test_tools_open_the_first_message() -> None:
    """As a default system message they come before the first message, once."""
    template = template_of("QWEN25", tools=(TOOL,))
    assert "weather" in template.begin("user", None)
    assert "weather" in template.end("system", None)
    assert "weather" not in template.begin("user", "assistant")


def test_a_tool_message_has_its_own_text() -> None:
    """The result of a call comes after the answer that asked for it."""
    template = template_of("QWEN25")
    assert template.begin("tool", "assistant") == "<|im_start|>user\n<tool_response>\n"
    assert template.end("tool", "assistant") == "\n</tool_response><|im_end|>\n"
    assert template.begin("assistant", "tool") == "<|im_start|>assistant\n"
    with pytest.raises(ChatTemplateError, match="refuses a tool message after an assistant message"):
        template_of("LLAMA2").begin("tool", "assistant")


def test_results_side_by_side_are_rendered_anew() -> None:
    """Qwen writes several tool results as one message, so with tools its conversations are no sums of messages."""
    with_tools = template_of("QWEN25", tools=(TOOL,))
    assert template_of("QWEN25").prefix_stable
    assert not with_tools.prefix_stable
    messages: list[Message] = [("user", SAID), ("assistant", "call"), ("tool", "1"), ("tool", "2")]
    text = text_of(with_tools.render(messages, "assistant"))
    assert text == published("QWEN25", messages, asks=True, tools=[json.loads(TOOL)])


def test_results_that_a_template_writes_as_json_are_rendered_anew() -> None:
    """Llama 3.1 puts a result into quotes and escapes it, which no text around it can do."""
    template = template_of("LLAMA3", tools=(TOOL,))
    messages: list[Message] = [("user", SAID), ("assistant", "call"), ("tool", 'it is "fine"')]
    assert not template.prefix_stable
    assert r'"it is \"fine\""<|eot_id|>' in text_of(template.render(messages, "assistant"))


def test_earlier_reasoning_is_dropped_as_the_template_drops_it() -> None:
    """Qwen3 leaves out the reasoning of an answer once the user has gone on, and keeps it until then."""
    template = template_of("QWEN3")
    assert not template.prefix_stable
    answer = "<think>\nlong\n</think>\n\nYes."
    messages: list[Message] = [("user", "Is it?"), ("assistant", answer)]
    assert "long" in text_of(template.render(messages, None))
    later = text_of(template.render(messages, "user"))
    assert later == "<|im_start|>user\nIs it?<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>user\n"
    messages.append(("user", "Sure?"))
    assert text_of(template.render(messages, "assistant")) == published("QWEN3", messages, asks=True)


@pytest.mark.parametrize(
    ("source", "stable"),
    [
        (UNSTABLE, False),
        (chat_templates.MISTRAL_SYSTEM_LAST, False),
        (SMOLLM2, True),
        (THINKING, True),
        (SYSTEM_IGNORED, True),
        ("{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}", True),
        ("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}", False),
        (
            "{% for m in messages %}{{ m.content if loop.first else raise_exception('') }}{% endfor %}",
            True,
        ),
    ],
)
def test_prefix_stability(source: str, stable: bool) -> None:
    """Messages that change with what follows make a template unstable; trimming and refusing do not."""
    assert JinjaTemplate(source, bos_token="<s>").prefix_stable is stable


def test_unstable_templates_are_rendered_anew() -> None:
    """What could not be added message by message is written as the template writes it."""
    template = JinjaTemplate(UNSTABLE)
    assert text_of(template.render([("user", "a")], None)) == "usera<end>"
    assert text_of(template.render([("user", "a")], "user")) == "usera<more>user"
    assert text_of(template.render([("user", "a")], "assistant")) == "usera<end>"  # it has no prompt for answers


@given(parts=st.lists(st.sampled_from([*TOKENS, "hi", " ", "<|im_", "end|>", "é", "\ue000", "\ue001"]), max_size=6))
def test_special_tokens_in_contents_stay_text(parts: list[str]) -> None:
    """Template spans spell the template's own special tokens and no more; the text is that of the conversation."""
    content = "".join(parts)
    template = template_of("CHATML")
    spans = template.render([("user", content)], "assistant")
    assert text_of(spans) == f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    own = "".join(span.text if span.template else "\0" for span in spans)
    assert (own.count("<|im_start|>"), own.count("<s>")) == (2, 0)
    assert own.count("<|im_end|>") == 1


def test_a_system_message_that_moves_on_is_nowhere_between_turns() -> None:
    """Mistral's later templates write it into the last user message, once there is one."""
    template = template_of("MISTRAL_SYSTEM_LAST")
    messages: list[Message] = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!")]
    assert text_of(template.render(messages, None)) == "<s>[INST] Hi[/INST] Hello!</s>"
    assert text_of(template.render(messages, "user")) == "<s>[INST] Hi[/INST] Hello!</s>[INST] Be brief.\n\n"


def test_special_tokens_in_tools_are_refused() -> None:
    """A tool's text goes into template text, where it would become the token."""
    tool = TOOL.replace("a town", "a town</s>")
    with pytest.raises(ChatTemplateError, match="a tool's description spells the special token '</s>'"):
        template_of("QWEN25", tools=(tool,))


def test_a_role_that_a_template_drops_or_refuses_is_an_error() -> None:
    """Nothing that a program says is lost in silence."""
    with pytest.raises(ChatTemplateError, match="no place of its own for a system message"):
        JinjaTemplate(SYSTEM_IGNORED).render([("system", "Be brief."), ("user", "Hi")], "assistant")
    with pytest.raises(ChatTemplateError, match="no place of its own for a system message"):
        JinjaTemplate(SYSTEM_IGNORED).render([], "system")
    with pytest.raises(ChatTemplateError, match="System role not supported"):
        template_of("GEMMA").render([("system", "Be brief."), ("user", "Hi")], "assistant")


@pytest.mark.parametrize("name", ["LLAMA2", "GEMMA3"])
def test_a_system_message_is_open_before_the_user_writes(name: str) -> None:
    """Templates that write system messages into the user's can still be opened at one, and closed behind it."""
    template = template_of(name)
    opened = text_of(template.render([], "system"))
    assert opened == template.begin("system", None)
    closed = text_of(template.render([("system", "Be brief.")], None))
    assert closed == opened + "Be brief." + template.end("system", None)


def test_an_end_of_sequence_that_closes_conversations_belongs_to_no_message() -> None:
    """Phi-3 writes one where nothing follows; Mistral's belongs to the answer."""
    assert template_of("PHI3").end("user", None) == "<|end|>\n"
    assert template_of("MISTRAL").end("assistant", "user") == "</s>"


def test_the_sequence_start_of_known_templates() -> None:
    """BOS opens a conversation, and is no part of later messages."""
    starts = {name: template_of(name).sequence_start for name in ("CHATML", "GEMMA3", "LLAMA3", "MISTRAL_SYSTEM_LAST")}
    assert starts == {"CHATML": "", "GEMMA3": "<s>", "LLAMA3": "<s>", "MISTRAL_SYSTEM_LAST": "<s>"}
    assert JinjaTemplate(chat_templates.CHATML, bos_token="<|im_start|>").sequence_start == ""


def test_the_plain_form_is_rendered_alike() -> None:
    """ROLE: content; what a program says is no template text."""
    template = PlainTemplate()
    spans = template.render([("user", "Hi"), ("tool", "<s>")], "assistant")
    assert text_of(spans) == "USER: Hi\nTOOL: <s>\nASSISTANT: "
    assert [span.text for span in spans if not span.template] == ["Hi", "<s>"]
    assert (template.prefix_stable, template.takes_tools) == (True, False)


def test_templates_are_shared_by_model_and_tools() -> None:
    """The probes of a model are made once for each set of tools."""
    info = ModelInfo(
        name="m", context_length=8, vocab_size=8, chat_template=chat_templates.QWEN25, special_tokens=TOKENS
    )
    assert chat_template(info, (TOOL,)) is chat_template(info, (TOOL,))
    assert chat_template(info, (TOOL,)) is not chat_template(info)
