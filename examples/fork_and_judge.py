"""Three judges read one essay side by side: the essay is computed once and every branch reuses it."""

import palmette as pt

ESSAY = (
    "Bicycles should have their own lanes on every main street. When riders share a lane with cars, drivers brake and "
    "swerve around them, and both are slower for it. A lane of its own costs little more than paint. Cities that tried "
    "it counted fewer crashes in the first year, and shops along the lanes sold more, because people on bicycles stop "
    "more often than people in cars. Streets are public space, and most of it is given to parked cars today."
)
SCHEMA = {
    "type": "object",
    "properties": {
        "verdict": {"enum": ["publish", "revise", "reject"]},
        "reason": {"type": "string", "maxLength": 80},
        "confident": {"type": "boolean"},
    },
    "required": ["verdict", "reason", "confident"],
    "additionalProperties": False,
}


@pt.function
def judge(s: pt.ProgramState, essay: str = ESSAY) -> None:
    s += pt.system("You grade essays.") + pt.user(essay)
    marks = s.fork(3)
    for branch, aspect in zip(marks, ["clarity", "evidence", "style"], strict=True):
        branch += pt.user(f"Grade the {aspect} of the essay from 1 to 5.")
        branch += pt.assistant("Grade: " + pt.gen("grade", regex="[1-5]", temperature=0))
    marks.join()
    s += pt.user("Is the essay for or against lanes for bicycles?")
    s += pt.assistant(pt.select("side", ["for", "against"]))
    s += pt.user("Sum up your decision as JSON.")
    s += pt.assistant(pt.gen("summary", json_schema=SCHEMA, max_tokens=96, temperature=0))


if __name__ == "__main__":
    with pt.runtime.launch() as engine:
        state = judge.run(backend=engine)
        print("grades: ", state["grade"])
        print("side:   ", state["side"])
        print("summary:", state["summary"])
        print()
        print(state.tree)
