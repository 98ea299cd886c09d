"""What a notebook shows of a state: here it is written to a file, to be opened in a browser."""

import sys
from pathlib import Path

import palmette as pt


@pt.function(temperature=0, max_tokens=16)
def names(s: pt.ProgramState, what: str = "a bakery") -> None:
    s += pt.user(f"Invent a name for {what}.")
    forks = s.fork(2)
    for branch, tone in zip(forks, ["funny", "serious"], strict=True):
        branch += pt.assistant(f"A {tone} name: " + pt.gen("name", regex="[A-Z][a-z]{2,9}( [A-Z][a-z]{2,9})?"))
    forks.join()
    s += pt.assistant("The better name is the " + pt.select("better", ["funny", "serious"]) + " one.")


def write_page(state: pt.ProgramState, path: Path) -> None:
    """In a notebook, `state` as the last line of a cell shows the same."""
    path.write_text(f"<!doctype html><meta charset='utf-8'><title>names</title>{state._repr_html_()}", encoding="utf-8")


if __name__ == "__main__":
    page = Path(sys.argv[1] if len(sys.argv) > 1 else "names.html")
    with pt.runtime.launch() as engine:
        write_page(names.run(backend=engine), page)
    print(f"open {page}")
