"""The smallest program: one question, one answer."""

import palmette as pt


@pt.function
def hello(s: pt.ProgramState, name: str = "Ada") -> None:
    s += pt.user(f"My name is {name}. Greet me in one short sentence.")
    s += pt.assistant(pt.gen("greeting", max_tokens=24, temperature=0))


if __name__ == "__main__":
    with pt.runtime.launch() as engine:
        state = hello.run(name="Ada", backend=engine)
        print(state["greeting"])
