"""An agent that calls typed Python functions: every call fits a signature, and the loop is plain Python."""

from typing import Literal

import palmette as pt

POPULATION = {"Paris": 2_100_000, "Berlin": 3_700_000, "Madrid": 3_300_000}


@pt.tool
def population(city: Literal["Paris", "Berlin", "Madrid"]) -> int:
    """The number of people who live in a city."""
    return POPULATION[city]


@pt.tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@pt.tool
def answer(text: str) -> str:
    """Give the final answer to the user.

    Args:
        text: one short sentence
    """
    return text


@pt.function(temperature=0, max_tokens=64)
def agent(s: pt.ProgramState, task: str = "How many people live in Paris?", max_calls: int = 3) -> str:
    s.use_tools(population, add, answer)
    s += pt.user(task)
    for number in range(max_calls):
        last = number == max_calls - 1
        s += pt.assistant(pt.gen(f"call_{number}", tools=[answer] if last else [population, add, answer]))
        call = s[f"call_{number}"]
        result = call.run()
        if call.tool is answer:
            break
        s += pt.tool_result(result)
    return str(result)


if __name__ == "__main__":
    with pt.runtime.launch() as engine:
        state = agent.run(backend=engine)
        for name in state.variable_names():
            print(state[name])
        print("Answer:", state.ret_value)
