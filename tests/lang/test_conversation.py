"""Messages of a branch under templates that add to a conversation, and under those that write it anew."""

from __future__ import annotations

import pytest
from tests.lang.test_chat_template import SMOLLM2

import palmette as pt
from palmette.runtime.program import Text

FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML that drops the reasoning of earlier answers, as Qwen3's does."""

WITH_TOOLS = "{% if tools %}<tools>{{ tools | tojson }}</tools>\n{% endif %}" + SMOLLM2
SPECIAL = ("<|im_start|>", "<|im_end|>")


@pt.tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@pt.function
def two_turns(s: pt.ProgramState) -> None:
    s += pt.user("A") + pt.assistant(pt.gen("a", separate_reasoning=True))
    s += pt.user("B") + pt.assistant(pt.gen("b", separate_reasoning=True))


def forgetful(answers: list[str]) -> pt.MockBackend:
    return pt.MockBackend(answers, chat_template=FORGETFUL, special_tokens=SPECIAL)


def test_a_conversation_is_written_anew_where_the_template_says_so() -> None:
    """The model reads earlier answers without their reasoning; values, messages and streamed text keep it."""
    backend = forgetful(["<think>hm</think>\n1", "<think>so</think>\n2"])
    state = two_turns.run(backend=backend)
    turn = "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n<|im_start|>user\nB<|im_end|>\n"
    assert backend.calls[1].prompt == turn + "<|im_start|>assistant\n"
    assert state.text().startswith(turn)
    assert (state["a"], state["a_reasoning_content"], state["b"]) == ("1", "hm", "2")
    assert [message["content"] for message in state.messages()][1] == "<think>hm</think>\n1"
    assert "<think>hm</think>\n1" in "".join(state.text_iter())
    state._interpreter.check_invariants()


def test_what_stays_the_same_is_not_sent_again() -> None:
    """Without reasoning the rendering goes on from the text that is there: nothing is written twice."""
    backend = forgetful(["1", "2"])
    state = two_turns.run(backend=backend)
    texts = [node.text for message in backend.messages for node in message if isinstance(node, Text)]
    assert sum("A" in text for text in texts) == 1
    assert state.text() == backend.calls[1].prompt + "2<|im_end|>\n"


def test_special_tokens_in_contents_stay_text_when_written_anew() -> None:
    """A content that spells a special token is plain text in every rendering."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.user("say <|im_end|>") + pt.assistant(pt.gen("a"))
        s += pt.user("B") + pt.assistant(pt.gen("b"))

    backend = forgetful(["<think>x</think>1", "2"])
    program.run(backend=backend)
    nodes = [node for message in backend.messages for node in message if isinstance(node, Text)]
    assert all(not node.template for node in nodes if node.text == "<|im_end|>")
    assert sum(node.text == "<|im_end|>" or "say <|im_end|>" in node.text for node in nodes if not node.template) == 2
    assert not any("say <|im_end|>" in node.text for node in nodes if node.template)


def test_branches_of_a_conversation_that_is_written_anew() -> None:
    """Each branch renders its own turn; concat takes what the branches appended."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.user("A") + pt.assistant(pt.gen("a"))
        forks = s.fork(2)
        for branch in forks:
            branch += pt.user("B") + pt.assistant(pt.gen("b"))
        forks.join("concat")
        s += pt.user("C") + pt.assistant(pt.gen("c"))

    backend = forgetful(["<think>t</think>1", "2", "3", "4"])
    state = program.run(backend=backend)
    assert [message["content"] for message in state.messages()] == [
        *["A", "<think>t</think>1"],
        *["B", "2"],
        *["B", "3"],
        *["C", "4"],
    ]
    assert "think" not in backend.calls[3].prompt
    assert backend.calls[3].prompt.count("<|im_start|>user\nB") == 2


def test_text_outside_of_messages_is_never_lost() -> None:
    """Where a program says something outside of its messages, they are added one by one."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.user("A") + pt.assistant(pt.gen("a"))
        s += "(aside)"
        s += pt.user("B") + pt.assistant(pt.gen("b"))

    backend = forgetful(["<think>t</think>1", "2"])
    program.run(backend=backend)
    assert "<think>t</think>1<|im_end|>\n(aside)<|im_start|>user\nB" in backend.calls[1].prompt


def test_tools_are_shown_by_the_template() -> None:
    """A template that takes tools writes them at the beginning; a result is a message of its own role."""

    @pt.function
    def program(s: pt.ProgramState) -> str:
        s.use_tools(weather)
        s += pt.user("Weather in Rome?")
        s += pt.assistant(pt.gen("call", tools=[weather]))
        call = s["call"]
        assert (call.name, call.arguments) == ("weather", {"city": "Rome"})
        s += pt.tool_result(call.run()) + pt.assistant(pt.gen("answer"))
        return str(s["answer"])

    answers = ['{"name":"weather","arguments":{"city":"Rome"}}', "Sunny."]
    backend = pt.MockBackend(answers, chat_template=WITH_TOOLS)
    state = program.run(backend=backend)
    assert backend.calls[0].prompt.startswith('<tools>[{"type": "function"')
    assert "<|im_start|>tool\nsunny in Rome<|im_end|>" in backend.calls[1].prompt
    assert [message["role"] for message in state.messages()] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("with_system", [False, True])
def test_tools_are_described_where_the_template_takes_none(with_system: bool) -> None:
    """A system message describes them, the program's own one if it has one."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s.use_tools(weather)
        if with_system:
            s += pt.system("Be brief.")
        s += pt.user("Q") + pt.assistant(pt.gen("call", tools=weather))

    backend = pt.MockBackend(['{"name":"weather","arguments":{"city":"Rome"}}'], chat_template=SMOLLM2)
    state = program.run(backend=backend)
    assert [message["role"] for message in state.messages()] == ["system", "user", "assistant"]
    system = state.messages()[0]["content"]
    assert "weather(city: str)" in system
    assert system.endswith("\n\nBe brief." if with_system else "}")


def test_a_template_that_knows_no_tool_role() -> None:
    """The result of a tool is a user message there."""
    strict = "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no') }}{% endif %}"
    strict += "[{{ m.role }}]{{ m.content }}\n{% endfor %}"

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s.use_tools(weather)
        s += pt.user("Q") + pt.assistant(pt.gen("call", tools=[weather]))
        s += pt.tool_result({"sun": True})

    backend = pt.MockBackend(['{"name":"weather","arguments":{"city":"Rome"}}'], chat_template=strict)
    state = program.run(backend=backend)
    assert state.text().endswith('[user]{"sun":true}\n')
    assert state.text().startswith("[user]You can call these tools")


def test_tools_come_first() -> None:
    """use_tools after a message, or with something else than tools, is an error that says so."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        with pytest.raises(TypeError, match=r"decorated with @pt\.tool"):
            s.use_tools(print)  # type: ignore[arg-type]  # the mistake under test
        s += pt.user("Q")
        with pytest.raises(pt.ProgramError, match="before the first message"):
            s.use_tools(weather)

    program.run(backend=pt.MockBackend())
