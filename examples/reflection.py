"""Draft, critique, revise: until the critic finds it easy and it is short, or the rounds are used up."""

import palmette as pt

TASK = "Write the first sentence of a story about a fox."
ADVICE = ["make it shorter", "use simpler words", "name the cause"]
MOST_WORDS = 20


@pt.function(temperature=0.7, max_tokens=40, stop="\n")
def write(s: pt.ProgramState, task: str = TASK, rounds: int = 3) -> str:
    s += pt.system("You are a careful writer.") + pt.user(task)
    s += pt.assistant(pt.gen("draft", seed=1))
    for number in range(rounds):
        with s.copy() as critic:  # what the critic says is no part of the writer's conversation
            critic += pt.user(pt.template("Here is a sentence: {draft}\nIs it easy to read?", draft=s.ref("draft")))
            critic += pt.assistant(pt.select("verdict", ["Yes.", "No."]))
            critic += pt.user("What should the writer do?")
            critic += pt.assistant("Please " + pt.select("advice", ADVICE))
        if critic["verdict"] == "Yes." and len(s["draft"].split()) <= MOST_WORDS:
            break
        s += pt.user(pt.template("Write it again, but {advice}.", advice=critic.ref("advice")))
        s += pt.assistant(pt.gen("draft", seed=number + 2))
    return str(s["draft"])


if __name__ == "__main__":
    with pt.runtime.launch() as engine:
        state = write.run(backend=engine)
        print(state.text())
        print("Final:", state.ret_value)
