"""The messages of a branch, and the text that the model's chat template puts around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from palmette.runtime.program import Text

from .chat_rendering import Role, TemplateSpan
from .chat_template import ChatTemplate
from .errors import ChatTemplateError, ProgramError
from .source_line import SourceLine
from .tool import Tool
from .tool_answers import tools_prompt
from .variables import text_of

if TYPE_CHECKING:
    from .interpreter import Interpreter


@dataclass(frozen=True, slots=True)
class Message:
    """A closed message: its role, the role it is written as, and the nodes of its content."""

    role: Role
    written: Role
    node_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpenRole:
    """The message that is open: its roles, the role written before it, and where in the branch's path it begins."""

    role: Role
    written: Role
    previous: Role | None
    start: int


class Conversation:
    """Opens and closes the messages of one branch. Everything here is called under the execution's lock.

    Where a template is prefix-stable, a message adds its text to what is there. Where it is not, what was said before
    is rendered again when a message opens: if that gives the text that is there, the message goes on from it, else the
    whole conversation is written anew from the root, and the radix cache finds what is left of the old one.

    Attributes:
        messages: the closed messages, in order.
        open_role: the message that is open, if any.
        tools: what the model may call.
        rewritten: the conversation was written anew.
    """

    def __init__(self, branch: Interpreter) -> None:
        self._branch = branch
        self.messages: list[Message] = []
        self.open_role: OpenRole | None = None
        self.tools: tuple[Tool[..., Any], ...] = ()
        self.rewritten = False

    def copy_for(self, branch: Interpreter) -> Conversation:
        """The same messages and tools on a branch that goes on from here."""
        copy = Conversation(branch)
        copy.messages = list(self.messages)
        copy.open_role = self.open_role
        copy.tools = self.tools
        copy.rewritten = self.rewritten
        return copy

    def use_tools(self, tools: tuple[Tool[..., Any], ...], line: SourceLine) -> None:
        """Show these tools to the model at the beginning of the conversation."""
        if self.messages or self.open_role is not None:
            raise ProgramError("use_tools() comes before the first message, where the model is told of them", line=line)
        self.tools = tools

    def needed_before_message(self) -> list[int]:
        """The nodes that must be done before a message can open."""
        return list(self._branch.path) if self._renders_anew() else []

    def begin(self, role: Role, line: SourceLine) -> None:
        """Open a message of `role`."""
        if self.open_role is not None:
            raise ProgramError(
                f"no {role} message can begin inside the open {self.open_role.role} message; close that one first",
                line=line,
            )
        explanation = self._explanation()
        if explanation and role != "system" and self._knows("system"):
            self._open("system", line)
            self._branch.add_text(explanation, line)
            self.end("system", line)
            explanation = ""
        self._open(role, line)
        if explanation:
            self._branch.add_text(f"{explanation}\n\n", line)

    def end(self, role: Role, line: SourceLine) -> None:
        """Close the open message, which must be of `role`."""
        opened = self.open_role
        if opened is None or opened.role != role:
            state = "none is open" if opened is None else f"the open message is of {opened.role}"
            raise ProgramError(f"there is no {role} message to close: {state}", line=line)
        self.messages.append(Message(role, opened.written, tuple(self._branch.path[opened.start :])))
        self.open_role = None
        self._branch.add_text(self._template.end(opened.written, opened.previous), line, template=True)

    def take_copies(self, other: Conversation, start: int, places: dict[int, int]) -> None:
        """Take over another branch's messages that lie after place `start` of its path.

        Args:
            places: for each place of its path from `start` on, the place of its copy on this branch's path.
        """
        place_of = {node_id: place for place, node_id in enumerate(other._branch.path)}
        path = self._branch.path
        for message in other.messages:
            spots = [place_of[node_id] for node_id in message.node_ids]
            if spots and spots[0] >= start:
                node_ids = tuple(path[places[spots[0]] : places[spots[-1] + 1]])
                self.messages.append(Message(message.role, message.written, node_ids))

    @property
    def _template(self) -> ChatTemplate:
        return self._branch.execution.template(self.tools)

    @property
    def _previous(self) -> Role | None:
        return self.messages[-1].written if self.messages else None

    def _knows(self, role: Role) -> bool:
        """Whether the template has a place for a message of `role` here."""
        try:
            self._template.begin(role, self._previous)
        except ChatTemplateError:
            return False
        return True

    def _explanation(self) -> str:
        """What tells the model of its tools where its template does not; "" after the first message."""
        if not self.tools or self.messages or self._template.takes_tools:
            return ""
        return tools_prompt(self.tools)

    def _open(self, role: Role, line: SourceLine) -> None:
        written: Role = "user" if role == "tool" and not self._knows("tool") else role
        previous = self._previous
        if self._renders_anew():
            self._render(written, line)
        else:
            self._branch.add_text(self._opening(written, previous), line, template=True)
        self.open_role = OpenRole(role, written, previous, len(self._branch.path))

    def _opening(self, written: Role, previous: Role | None) -> str:
        text = self._template.begin(written, previous)
        if previous is None and self._branch.path:
            return text.removeprefix(self._template.sequence_start)  # a sequence begins only once
        return text

    # -- templates that write earlier messages differently once others follow ------------------------------------------

    def _renders_anew(self) -> bool:
        return bool(self.messages) and not self._template.prefix_stable and self._is_all_messages()

    def _is_all_messages(self) -> bool:
        """Whether nothing was said outside of messages: the template can render what it knows only."""
        inside = {node_id for message in self.messages for node_id in message.node_ids}
        records = self._branch.execution.tree.records
        return all(
            node_id in inside or not records[node_id].text or _is_template(records[node_id].node)
            for node_id in self._branch.path
        )

    def _render(self, written: Role, line: SourceLine) -> None:
        """Open a message behind the conversation as the template renders it now."""
        tree = self._branch.execution.tree
        said = [(message.written, text_of(message.node_ids, tree)) for message in self.messages]
        spans = self._template.render(said, written)
        present = text_of(self._branch.nodes(), tree)
        if "".join(span.text for span in spans).startswith(present):
            for span in _after(spans, len(present)):
                self._branch.add_text(span.text, line, template=span.template)
            return
        self.rewritten = True
        self._branch.tip = None
        for span in spans:
            self._branch.add_hidden(partial(_text_node, span), line)


def _text_node(span: TemplateSpan, node_id: int, parent: int | None) -> Text:
    return Text(node_id, parent, span.text, span.template)


def _is_template(node: object) -> bool:
    return isinstance(node, Text) and node.template


def _after(spans: Sequence[TemplateSpan], length: int) -> Iterator[TemplateSpan]:
    """The spans without their first `length` characters."""
    for span in spans:
        if length < len(span.text):
            yield TemplateSpan(span.text[length:], span.template)
        length = max(0, length - len(span.text))
