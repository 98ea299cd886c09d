"""The page for people who come from SGLang tells the truth, and programs in its style run with the import changed."""

# ruff: noqa: ANN001, ANN202
# mypy: allow-untyped-defs, allow-untyped-calls
# The programs have no annotations, as SGLang's have none.

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.lang.test_chat_template import SMOLLM2

import palmette as sgl
from palmette.lang.options import SamplingOptions

PAGE = (Path(__file__).parents[2] / "docs" / "migration" / "sglang.md").read_text(encoding="utf-8")
VERDICTS = ("same", "better", "changed", "later", "not offered")
SAMPLING = """stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty ignore_eos
    return_logprob logprob_start_len top_logprobs_num return_text_in_logprobs"""

NAMES_OF_SGLANG = {
    "Names of the package": """function gen gen_int gen_string select image video system user assistant system_begin
        system_end user_begin user_end assistant_begin assistant_end separate_reasoning set_default_backend flush_cache
        get_server_info token_length_normalized greedy_token_selection unconditional_likelihood_normalized __version__
        Runtime Engine ServerArgs RuntimeEndpoint OpenAI Anthropic LiteLLM VertexAI Crusoe global_config""",
    "Arguments of gen": f"name max_tokens min_tokens n {SAMPLING} dtype choices choices_method regex json_schema",
    "Arguments of select": "name choices temperature choices_method",
    "Methods of a function": "run run_batch bind trace cache compile __call__",
    "Arguments of run and run_batch": f"""max_new_tokens {SAMPLING} n backend stream num_threads
        progress_bar generator_style use_thread""",
    "A state": """__iadd__ __getitem__ __setitem__ __contains__ get_var set_var get_meta_info system user assistant
        var_scope fork copy text messages sync error text_iter text_async_iter stream_executor""",
    "The branches of a fork": "join __getitem__ __setitem__ __iadd__ states src_state",
    "Keys of get_meta_info": """prompt_tokens completion_tokens cached_tokens finish_reason output_token_logprobs
        output_top_logprobs input_token_logprobs input_top_logprobs e2e_latency normalized_prompt_logprobs
        greedy_logprob_matrix unconditional_token_logprobs id weight_version""",
}


def rows(title: str) -> list[list[str]]:
    """The rows of the table under a heading: SGLang's name, Palmette's, the verdict and the remark."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    assert all(len(cells) == 4 for cells in lines), section
    return [[cell.strip().strip("`") for cell in cells[:2]] + [cell.strip() for cell in cells[2:]] for cells in lines]


def parameters(*functions: Callable[..., Any]) -> set[str]:
    named = {name for function in functions for name in inspect.signature(function).parameters}
    return named | SamplingOptions.__annotations__.keys()


def meta_info_keys() -> set[str]:
    """What the mock, and with it every backend, tells of a generation and of a select."""

    @sgl.function
    def both(s: sgl.ProgramState) -> None:
        s += "x" + sgl.gen("a", return_logprob=True) + sgl.select("b", ["c", "d"])

    state = both.run(backend=sgl.MockBackend(["y", "d"]))
    return {*state.get_meta_info("a"), *state.get_meta_info("b")}


NAMES_OF_PALMETTE: dict[str, Callable[[], set[str]]] = {
    "Names of the package": lambda: set(sgl.__all__),
    "Arguments of gen": lambda: parameters(sgl.gen),
    "Arguments of select": lambda: set(inspect.signature(sgl.select).parameters),
    "Methods of a function": lambda: set(dir(sgl.Function)),
    "Arguments of run and run_batch": lambda: parameters(sgl.Function.run, sgl.Function.run_batch),
    "A state": lambda: set(dir(sgl.ProgramState)),
    "The branches of a fork": lambda: set(dir(sgl.ProgramStateGroup)),
    "Keys of get_meta_info": meta_info_keys,
}


@pytest.mark.parametrize("title", NAMES_OF_SGLANG)
def test_a_table_of_the_page(title: str) -> None:
    """It has every name of SGLang's once; what it says is there exists, and what it does not offer does not."""
    table = rows(title)
    assert sorted(name for name, *_ in table) == sorted(NAMES_OF_SGLANG[title].split())
    present = NAMES_OF_PALMETTE[title]()
    for name, ours, verdict, note in table:
        assert verdict in VERDICTS
        if verdict in ("same", "better", "changed"):
            assert ours in present, f"{title}: {name} is called {verdict}, but there is no {ours}"
            assert verdict == "changed" or name == ours
            assert verdict == "same" or note
        else:
            assert (ours, name in present) == ("", False)
            assert note, f"{title}: {name} is {verdict}, and nothing says why"


def test_every_other_name_on_the_page_exists() -> None:
    """What stands beside SGLang's names is there too."""
    for title, names in NAMES_OF_PALMETTE.items():
        section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
        beside = section.partition("\nBeside these: ")[2].partition(".\n")[0]
        assert set(re.findall(r"`(\w+)`", beside)) <= names()
    assert PAGE.count("\nBeside these: ") == 4


# -- programs in SGLang's style --------------------------------------------------------------------------------------


def test_multi_turn_questions() -> None:
    """Roles, two answers, and defaults of the run."""

    @sgl.function
    def multi_turn_question(s, question_1, question_2):
        s += sgl.system("You are a helpful assistant.")
        s += sgl.user(question_1)
        s += sgl.assistant(sgl.gen("answer_1", max_tokens=256))
        s += sgl.user(question_2)
        s += sgl.assistant(sgl.gen("answer_2", max_tokens=256))

    sgl.set_default_backend(sgl.MockBackend({"List": "Paris, Rome", "Capital": "Paris"}, chat_template=SMOLLM2))
    try:
        state = multi_turn_question.run(question_1="Capital?", question_2="List two.", temperature=0.7, top_p=0.9)
    finally:
        sgl.set_default_backend(None)
    assert [message["role"] for message in state.messages()] == ["system", "user", "assistant", "user", "assistant"]
    assert (state["answer_1"], state["answer_2"]) == ("Paris", "Paris, Rome")


def test_tips_by_fork() -> None:
    """Branches are expanded side by side and read one by one."""

    @sgl.function
    def tip_suggestion(s, topic):
        s += f"Here are two tips for {topic}: 1. Balance. 2. Exercise.\n\n"
        forks = s.fork(2)
        for i, f in enumerate(forks):
            f += f"Now, expand tip {i + 1} into a paragraph:\n"
            f += sgl.gen("detailed_tip", max_tokens=256, stop="\n\n")
        s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
        s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
        s += "In summary" + sgl.gen("summary")

    answers = {"In summary$": ", both.", "tip 1 into": "Eat well.", "tip 2 into": "Run."}
    state = tip_suggestion.run(topic="health", backend=sgl.MockBackend(answers))
    assert "Tip 1:Eat well.\nTip 2:Run.\nIn summary, both." in state.text()


def test_tool_use_by_select() -> None:
    """What was chosen decides what the program asks next."""

    @sgl.function
    def tool_use(s, question):
        s += "To answer this question: " + question + ". "
        s += "I need to use a " + sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
        if s["tool"] == "calculator":
            s += "The math expression is: " + sgl.gen("expression")
        elif s["tool"] == "search engine":
            s += "The key word to search is: " + sgl.gen("word")

    backend = sgl.MockBackend({"weather.*use a $": "search engine", r"2 \+ 3.*use a $": "calculator", "": "it"})
    assert "expression" in tool_use.run(question="What is 2 + 3?", backend=backend)
    assert "word" in tool_use.run(question="How is the weather?", backend=backend)


def test_expert_answers() -> None:
    """A prompt that is made of an earlier answer."""

    @sgl.function
    def expert_answer(s, question):
        s += "Question: " + question + "\n"
        s += "A good person to answer this question is" + sgl.gen("expert", stop=[".", "\n"]) + ".\n"
        s += "For example," + s["expert"] + " would answer:" + sgl.gen("answer", max_tokens=64)

    state = expert_answer.run("Why is the sky blue?", backend=sgl.MockBackend([" Lord Rayleigh. Or", " Scattering."]))
    assert state.text().endswith("is Lord Rayleigh.\nFor example, Lord Rayleigh would answer: Scattering.")


def test_json_by_a_regular_expression() -> None:
    """The text is the whole object."""
    character_regex = r"""\{\n    "name": "[\w\d\s]{1,16}",\n    "house": "(Gryffindor|Slytherin)"\n\}"""

    @sgl.function
    def character_gen(s, name):
        s += name + " is a character in Harry Potter. Please fill in the following information.\n"
        s += sgl.gen("json_output", max_tokens=256, regex=character_regex)

    answer = '{\n    "name": "Hermione",\n    "house": "Gryffindor"\n}'
    assert character_gen.run(name="Hermione", backend=sgl.MockBackend([answer]))["json_output"] == answer


def test_few_shot_questions_in_a_batch() -> None:
    """Items by name and by place, options of the batch, and results in order."""

    @sgl.function
    def few_shot_qa(s, question):
        s += "The following are questions with answers.\n\nQ: What is the capital of France?\nA: Paris\n"
        s += "Q: " + question + "\n"
        s += "A:" + sgl.gen("answer", stop="\n", temperature=0)

    backend = sgl.MockBackend({"Germany": " Berlin\n", "Italy": " Rome\n"})
    items = [{"question": "Capital of Germany?"}, {"question": "Capital of Italy?"}]
    states = few_shot_qa.run_batch(items, temperature=0, max_new_tokens=16, num_threads=2, backend=backend)
    assert [state["answer"] for state in states] == [" Berlin", " Rome"]
    generated = few_shot_qa.run_batch([("Capital of Italy?",)], backend=backend, generator_style=True)
    assert [state["answer"] for state in generated] == [" Rome"]


def streamed(s: Any, question: str) -> None:
    s += sgl.user(question) + sgl.assistant(sgl.gen("answer", max_tokens=256))


def test_streaming() -> None:
    """`run(stream=True)` gives a state whose text comes in pieces."""
    state = sgl.function(streamed).run(question="Capital?", stream=True, backend=sgl.MockBackend(["Paris is it."]))
    pieces = list(state.text_iter(var_name="answer"))
    assert (len(pieces) > 1, "".join(pieces)) == (True, "Paris is it.")
    assert "".join(state.text_iter()) == state.text()


def test_asynchronous_streaming() -> None:
    """The same with ``async for``."""

    async def main() -> str:
        state = sgl.function(streamed).run(question="Capital?", stream=True, backend=sgl.MockBackend(["Paris is it."]))
        return "".join([piece async for piece in state.text_async_iter(var_name="answer")])

    assert asyncio.run(main()) == "Paris is it."


def test_roles_by_begin_and_end() -> None:
    """Messages opened and closed by hand, and as blocks, give the same conversation."""

    @sgl.function
    def by_hand(s):
        s += sgl.user_begin() + "Say hi." + sgl.user_end()
        s += sgl.assistant_begin() + sgl.gen("a", max_tokens=4) + sgl.assistant_end()

    @sgl.function
    def by_blocks(s):
        with s.user():
            s += "Say hi."
        with s.assistant():
            s += sgl.gen("a", max_tokens=4)

    texts = [
        program.run(backend=sgl.MockBackend(["hi"], chat_template=SMOLLM2)).text() for program in (by_hand, by_blocks)
    ]
    assert texts[0] == texts[1]


def test_text_joined_from_branches() -> None:
    """SGLang's names of the join modes, a function of the place, and what `var_scope` and `set_var` keep."""

    @sgl.function
    def parallel(s):
        s += "Signal.\n"
        forks = s.fork(2)
        forks += lambda i: f"{i}: " + sgl.gen("line", max_tokens=16, stop="\n") + "\n"
        forks.join("concate_and_append")
        with s.var_scope("end"):
            s += "Done " + sgl.gen_int("count", max_tokens=4)
        s.set_var("note", "kept")
        gathered = s.fork(2)
        gathered += sgl.gen("vote", choices=["yes", "no"], choices_method=sgl.greedy_token_selection)
        gathered.join("gather_variable")
        return s.get_var("end")

    answers = {"0: $": "a", "1: $": "b", "Done $": "2", r"Done 2$": "no"}
    state = parallel.run(backend=sgl.MockBackend(answers))
    assert state.text() == "Signal.\n0: a\n1: b\nDone 2"
    assert (state.ret_value, state["note"], state["vote"], state["count"]) == ("Done 2", "kept", ["no", "no"], 2)


def test_log_probabilities() -> None:
    """SGLang's names of the options give every token's log-probability, of the prompt too."""

    @sgl.function
    def scored(s):
        s += "One two" + sgl.gen(
            "x", return_logprob=True, top_logprobs_num=2, logprob_start_len=0, return_text_in_logprobs=True
        )

    info = scored.run(backend=sgl.MockBackend([" three four"])).get_meta_info("x")
    assert [token.text for token in info["logprobs"]] == [" three", " four"]
    assert [len(token.top) for token in info["logprobs"]] == [2, 2]
    assert len(info["prompt_logprobs"]) == info["prompt_tokens"]
