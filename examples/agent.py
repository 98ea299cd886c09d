"""A ReAct loop: think, then call a tool or answer; read the result, and think again. The loop is plain Python."""

import sys
from typing import Literal

import palmette as pt

ARTICLES = {
    "pear": "The pear is a tree of 10 to 17 metres that lives for 150 years. Its fruit ripens in autumn.",
    "apple": "The apple is a tree of 2 to 4 metres that lives for 80 years. Its fruit ripens in late summer.",
}


@pt.tool
def look_up(topic: Literal["pear", "apple"]) -> str:
    """Read an article of the encyclopedia.

    Args:
        topic: what the article is about
    """
    return ARTICLES[topic]


@pt.tool
def divide(number: int, by: int) -> float:
    """Divide two numbers."""
    return round(number / by, 2)


@pt.function(temperature=0, max_tokens=64)
def agent(s: pt.ProgramState, question: str = "How tall is an apple tree?", steps: int = 3) -> str:
    s.use_tools(look_up, divide)
    s += pt.user(question)
    last = None
    for number in range(steps):
        with s.assistant():
            s += "I need to" + pt.gen(f"thought_{number}", min_tokens=4, stop=["\n", "."]) + ".\n"
            s += pt.gen(f"step_{number}", tools=[look_up, divide], tool_choice="auto" if number else "required")
        step = s[f"step_{number}"]
        if isinstance(step, str):
            return step
        try:
            result = step.run()
        except ZeroDivisionError as error:  # the model reads what went wrong, and may do better
            result = error
        s += pt.tool_result(result)
        if step == last:
            break  # a small model goes round in circles
        last = step
    s += pt.user("Now answer in one sentence.") + pt.assistant(pt.gen("answer", stop="\n"))
    return str(s["answer"])


if __name__ == "__main__":
    with pt.runtime.launch() as engine:
        state = agent.run(*sys.argv[1:2], backend=engine)
        print(state.text())
        print("Answer:", state.ret_value)
