"""Label a batch of messages with `select`: every option is scored, and the few-shot header is computed once."""

import palmette as pt

HEADER = """\
Message: The parcel never came and nobody answers my calls.
Mood: angry
Message: Thank you, that was quick and friendly!
Mood: happy
Message: Which sizes does the blue shirt come in?
Mood: neutral
"""
MESSAGES = [
    "I love the new design, well done!",
    "This is the third time it broke. Give me my money back.",
    "When does the shop open on Sunday?",
]


@pt.function
def classify(s: pt.ProgramState, message: str = MESSAGES[0]) -> None:
    s += HEADER + f"Message: {message}\nMood:"
    s += pt.select("mood", [" angry", " happy", " neutral"])


if __name__ == "__main__":
    with pt.runtime.launch() as engine:
        states = classify.run_batch([{"message": message} for message in MESSAGES], backend=engine)
        for message, state in zip(MESSAGES, states, strict=True):
            print(f"{state['mood'].strip():8} {message}")
