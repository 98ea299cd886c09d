"""An agent loop: the model picks one of two Python tools by JSON that must fit the tools' schema, until it answers."""

import json
from collections.abc import Callable

import palmette as pt

POPULATION = {"Paris": 2_100_000, "Berlin": 3_700_000, "Madrid": 3_300_000}


def population(city: str) -> str:
    return f"{city} has {POPULATION.get(city, 0):,} inhabitants."


def add(a: int, b: int) -> str:
    return f"The sum is {a + b:,}."


TOOLS: dict[str, Callable[..., str]] = {"population": population, "add": add}
INTEGER = {"type": "integer", "minimum": 0, "maximum": 99_999_999}


def call(tool: str, **arguments: object) -> dict[str, object]:
    """The schema of a call of `tool`."""
    properties = {"tool": {"const": tool}, **arguments}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


ANSWER = call("answer", text={"type": "string", "maxLength": 60})
CALL = {
    "anyOf": [
        call("population", city={"enum": list(POPULATION)}),
        call("add", a=INTEGER, b=INTEGER),
        ANSWER,
    ]
}


@pt.function
def agent(s: pt.ProgramState, task: str = "How many people live in Paris?", max_calls: int = 3) -> str:
    s += pt.system(
        "You solve tasks by calling tools, one JSON object at a time. Tools: population(city), add(a, b), answer(text)."
    )
    s += pt.user(task)
    for number in range(max_calls):
        name, schema = f"call_{number}", CALL if number < max_calls - 1 else ANSWER
        s += pt.assistant(pt.gen(name, json_schema=schema, max_tokens=64, temperature=0))
        arguments = json.loads(s[name])
        tool = arguments.pop("tool")
        if tool == "answer":
            break
        s += pt.user(TOOLS[tool](**arguments))
    return str(arguments["text"])


if __name__ == "__main__":
    with pt.runtime.launch() as engine:
        state = agent.run(backend=engine)
        print(state.text())
        print("Answer:", state.ret_value)
