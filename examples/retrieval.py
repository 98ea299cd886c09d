"""Answer a question from a few paragraphs: those that share most words with it are shown, and the answer cites one."""

import re
import sys
from typing import Literal, TypedDict

import palmette as pt

PARAGRAPHS = {
    "pear": "The pear tree is native to Europe. It grows up to 17 metres high and its fruit ripens in late summer.",
    "fig": "The fig tree came to Europe from western Asia. It needs sun and bears fruit twice in a good year.",
    "espalier": "An espalier is a fruit tree trained flat against a wall, whose warmth makes the fruit ripen early.",
    "cider": "Cider is pressed from apples in autumn and ferments in oak barrels until spring.",
}


class Answer(TypedDict):
    source: Literal["pear", "fig", "espalier", "cider"]
    answer: str


def retrieve(question: str, count: int = 2) -> list[str]:
    """The ids of the paragraphs that share most words with the question."""

    def words(text: str) -> set[str]:
        return set(re.findall(r"\w{3,}", text.lower()))

    return sorted(PARAGRAPHS, key=lambda key: -len(words(PARAGRAPHS[key]) & words(question)))[:count]


@pt.function(temperature=0)
def answer(s: pt.ProgramState, question: str = "How high does a pear tree grow?") -> list[str]:
    found = retrieve(question)
    s += pt.system("You answer questions from the paragraphs that you are given, and cite one of them.")
    paragraphs = "\n".join(f"[{key}] {PARAGRAPHS[key]}" for key in found)
    s += pt.user(f"{paragraphs}\n\nQuestion: {question}")
    s += pt.assistant(pt.gen("reply", type=Answer, max_tokens=64))
    return found


if __name__ == "__main__":
    with pt.runtime.launch() as engine:
        state = answer.run(*sys.argv[1:2], backend=engine)
        print("shown: ", ", ".join(state.ret_value))
        print("answer:", state["reply"]["answer"])
        print("source:", PARAGRAPHS[state["reply"]["source"]])
