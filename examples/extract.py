"""Read an object out of free text: the value is a Pydantic model."""

import sys
from typing import Literal

from pydantic import BaseModel, Field

import palmette as pt


class Meeting(BaseModel):
    person: str = Field(max_length=30)
    weekday: Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
    hour: int = Field(ge=0, le=23)


@pt.function
def extract(s: pt.ProgramState, text: str = "Let us meet on Thursday at 15:00. Greetings, Grace Hopper") -> None:
    s += pt.user(f"Who wants to meet, on which weekday, and at which hour?\n\n{text}")
    s += pt.assistant(pt.gen("meeting", type=Meeting, max_tokens=64, temperature=0))


if __name__ == "__main__":
    with pt.runtime.launch() as engine:
        print(extract.run(*sys.argv[1:2], backend=engine)["meeting"])
