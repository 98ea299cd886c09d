"""What a request of /v1/chat/completions asks for: its prompt, its sampling and its grammar."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from palmette.constrained.grammar import Grammar
from palmette.runtime.program import Generate, ModelInfo, Node, Text
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.service import EngineService
from palmette.runtime.tokenizer import Piece, Tokenizer

from .answer_reader import AnswerReader
from .chat_prompt import ChatPrompts
from .disguise import TemplateSpan
from .errors import ApiError, bad_request, refused
from .openai_models import ChatRequest
from .reasoning import PromptState, ReasoningFormat, reasoning_format_of
from .tool_choice import ToolChoice, ToolError, function_tools, tool_choice
from .tool_formats import ToolFormat, tool_format_of
from .tool_grammar import ToolPlan, no_calls, tool_plan

_NEVER = -1e6
"""A bias that no logit makes up for."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """What chats of a model need to know of it."""

    info: ModelInfo
    prompts: ChatPrompts
    tools: ToolFormat
    reasoning: ReasoningFormat | None
    tokenizer: Tokenizer

    @classmethod
    def of(cls, service: EngineService) -> ChatModel:
        info = service.model_info
        return cls(info, ChatPrompts.of(info), tool_format_of(info), reasoning_format_of(info), service.tokenizer)


@dataclass(frozen=True, slots=True)
class AskedChat:
    """An answer, or several, to a conversation.

    Attributes:
        spans: the prompt.
        grammar: what the answer must match, its reasoning and its calls included.
        grammar_param: the field that the grammar came in.
        plan: how tools are called; None where none may be.
        reasoning, state: the model's reasoning, and how the answer begins.
    """

    body: ChatRequest
    spans: tuple[TemplateSpan, ...]
    params: SamplingParams
    grammar: Grammar | None
    grammar_param: str | None
    plan: ToolPlan | None
    reasoning: ReasoningFormat | None
    state: PromptState
    tokenizer: Tokenizer

    @property
    def stop_id(self) -> int | None:
        """The token behind which an answer goes on with calls."""
        return _special_id(self.tokenizer, self.plan.stop_token) if self.plan and self.plan.stop_token else None

    def reader(self) -> AnswerReader:
        """A reader of one answer."""
        reasoning = self.reasoning if self.body.separate_reasoning is not False else None
        splitter = reasoning.splitter(self.state) if reasoning is not None else None
        return AnswerReader(splitter, self.plan)

    def nodes(self) -> list[Node]:
        """The program: the prompt, and a generation for all answers; one each where they may go on separately."""
        nodes: list[Node] = []
        for span in self.spans:
            nodes.append(Text(len(nodes), len(nodes) - 1 if nodes else None, span.text, span.template))
        parent = len(nodes) - 1 if nodes else None
        stream, answers = bool(self.body.stream), self.body.answers
        if self.stop_id is None:
            return [*nodes, Generate(len(nodes), parent, self.params, self.grammar, answers, stream)]
        first = len(nodes)
        for answer in range(answers):
            params = _seeded(self.params, answer)
            nodes.append(Generate(first + answer, parent, params, self.grammar, 1, stream))
        return nodes

    def calls_after(self, node: int, first_id: int, tokens_left: int, answer: int) -> tuple[list[Node], ToolPlan]:
        """What follows a generation that stopped at `stop_id`: that token, and calls under their grammar."""
        assert self.plan is not None
        plan = self.plan.after_stop()
        params = msgspec.structs.replace(_seeded(self.params, answer), max_tokens=tokens_left, min_tokens=0)
        marker = Text(first_id, node, self.plan.stop_token + plan.prompt_end, template=True)
        return [marker, Generate(first_id + 1, first_id, params, plan.grammar, 1, bool(self.body.stream))], plan

    def explain(self, kind: str, message: str) -> ApiError | None:
        """An error about the grammar as one about the tool, or the field, that it came from."""
        if self.plan is None or not kind.endswith("GrammarError"):
            return None
        about_tool = self.plan.error_of(message)
        return refused(about_tool) if about_tool is not None else None


def asked_chat(body: ChatRequest, model: ChatModel) -> AskedChat:
    """What a request asks for, checked.

    Raises:
        ApiError: a message, a tool, a grammar or a sampling option cannot be used.
    """
    body.check()
    plan = _tool_plan(body, model)
    grammar, grammar_param = body.grammar()
    tools = function_tools(body.tools)
    if plan is not None:
        grammar, grammar_param = _with_tools(plan, grammar, grammar_param)
    elif tools and grammar is None:
        grammar, grammar_param = no_calls(model.tools, tools), "tools"
    continues = bool(body.continue_final_message)
    asks = not continues if body.add_generation_prompt is None else body.add_generation_prompt
    values = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        values.setdefault("reasoning_effort", body.reasoning_effort)
    # Tools that may not be called are shown all the same: the conversation keeps the prefix that is in the cache.
    rendered = model.prompts.render(body.messages, tools=tools, asks=asks, continues=continues, values=values)
    spans = rendered.spans
    if plan is not None and plan.prompt_end:
        spans = (*spans, TemplateSpan(plan.prompt_end, template=True))
    state = _state(model.reasoning, rendered.end, body if continues else None)
    if plan is not None and plan.prompt_end:
        state = "over"  # the prompt ends in the beginning of a call
    if model.reasoning is not None:
        grammar = model.reasoning.grammar(grammar, state)
    return AskedChat(
        body=body,
        spans=spans,
        params=_params(body, model, plan),
        grammar=grammar,
        grammar_param=grammar_param,
        plan=plan,
        reasoning=model.reasoning,
        state=state,
        tokenizer=model.tokenizer,
    )


def _params(body: ChatRequest, model: ChatModel, plan: ToolPlan | None) -> SamplingParams:
    params = body.params(
        model.info.sampling_defaults,
        max_tokens=body.max_output(model.info.context_length),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    if plan is None:
        return _without_calls(params, model) if body.tools else params
    if not plan.stop_token:
        return params
    stop_id = _special_id(model.tokenizer, plan.stop_token)
    return msgspec.structs.replace(params, stop_token_ids=(*params.stop_token_ids, stop_id))


def _without_calls(params: SamplingParams, model: ChatModel) -> SamplingParams:
    """Options under which no call begins with a special token; others are kept out by the grammar."""
    if not model.tools.is_hidden:
        return params
    marker = _special_id(model.tokenizer, model.tools.marker)
    return msgspec.structs.replace(params, logit_bias={**params.logit_bias, marker: _NEVER})


def _tool_plan(body: ChatRequest, model: ChatModel) -> ToolPlan | None:
    try:
        choice: ToolChoice = tool_choice(
            body.tool_choice, function_tools(body.tools), parallel=body.parallel_tool_calls
        )
        return None if choice.mode == "none" else tool_plan(model.tools, choice)
    except ToolError as error:
        raise refused(error) from None


def _with_tools(plan: ToolPlan, grammar: Grammar | None, param: str | None) -> tuple[Grammar | None, str | None]:
    """The grammar of an answer that may call tools, or must, and else match `grammar`.

    Calls that must come are all of the answer, so that there is nothing left for `grammar`.
    """
    if grammar is None or plan.must_call:
        return plan.grammar, "tools"
    calls = tool_plan(plan.format, replace(plan.choice, mode="required")).grammar
    if plan.grammar is None or calls is None:
        message = f"with this model {param} cannot be given beside tools that may be called; set tool_choice to none"
        raise bad_request(f"{message} or required", param=param)
    either = [json.loads(calls.source)["format"], _format_of(grammar, param)]
    return Grammar.structural_tag({"type": "structural_tag", "format": {"type": "or", "elements": either}}), param


def _format_of(grammar: Grammar, param: str | None) -> dict[str, Any]:
    """A grammar as a part of a structural tag."""
    if grammar.kind == "regex":
        return {"type": "regex", "pattern": grammar.source}
    source = json.loads(grammar.source)
    if grammar.kind == "json_schema":
        return {"type": "json_schema", "json_schema": source}
    if grammar.kind == "structural_tag" and "format" in source:
        return dict(source["format"])
    if grammar.kind == "ebnf":
        return {"type": "grammar", "grammar": source["ebnf"]}
    raise bad_request(f"{param} of this form cannot be given beside tools; set tool_choice to none", param=param)


def _state(reasoning: ReasoningFormat | None, prompt_end: str, continued: ChatRequest | None) -> PromptState:
    """How an answer begins; one that goes on with a message is within its reasoning only if that has not ended."""
    if reasoning is None:
        return "over"
    if continued is None:
        return reasoning.state_after(prompt_end)
    content = continued.messages[-1].content
    text = content if isinstance(content, str) else ""
    return "begun" if text.rfind(reasoning.begin) > text.rfind(reasoning.end) else "over"


def _special_id(tokenizer: Tokenizer, token: str) -> int:
    return tokenizer.encode([Piece(token, True, 0)], start=False).ids[0]


def _seeded(params: SamplingParams, answer: int) -> SamplingParams:
    """Options of one of several answers: each has a random stream of its own."""
    if params.seed is None or answer == 0:
        return params
    return msgspec.structs.replace(params, seed=(params.seed + answer) % (1 << 64))
