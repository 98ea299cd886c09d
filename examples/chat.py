"""A chat of two turns whose answers are printed while they are written."""

import palmette as pt

QUESTIONS = ["What is the capital of France?", "And what river flows through it?"]


@pt.function
def chat(s: pt.ProgramState, questions: list[str] = QUESTIONS) -> None:
    s += pt.system("You answer in one sentence.")
    for number, question in enumerate(questions):
        s += pt.user(question)
        s += pt.assistant(pt.gen(f"answer_{number}", max_tokens=32, temperature=0, stop="\n"))


if __name__ == "__main__":
    with pt.runtime.launch() as engine:
        state = chat.run(backend=engine, stream=True)
        for number, question in enumerate(QUESTIONS):
            print(f"> {question}")
            for piece in state.text_iter(f"answer_{number}"):
                print(piece, end="", flush=True)
            print()
