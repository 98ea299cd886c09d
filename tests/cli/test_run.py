"""`palmette run`: programs from files."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run, UseEngine
from tests.lang.trace_event_rules import checked_events

import palmette as pt
from palmette.runtime.program import Generate

PROGRAM = """
import palmette as pt

@pt.function
def describe(s: pt.ProgramState, fruit: str, count: int = 1) -> int:
    s += f"{count} x {fruit}: " + pt.gen("text")
    branches = s.fork(2)
    for branch in branches:
        branch += pt.gen("taste", stop=".")
    branches.join()
    return count
"""


def file_with(folder: Path, code: str) -> Path:
    path = folder / "program.py"
    path.write_text("import palmette as pt\n" + code, encoding="utf-8")
    return path


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return file_with(tmp_path, PROGRAM)


def test_variables_and_return_value(palmette: Run, use_engine: UseEngine, program: Path) -> None:
    """Standard output holds the variables and the return value; the tree is on standard error."""
    use_engine(["juicy", "sweet", "sour"])
    result = palmette("run", program, "--arg", "fruit=pear", "--arg", "count=3")
    assert result.exit_code == 0
    assert result.stdout == 'text: juicy\ntaste: ["sweet", "sour"]\nreturned: 3\n'
    assert "gen text  'juicy'" in result.stderr
    assert "mock ready in" in result.stderr


def test_json_output(palmette: Run, use_engine: UseEngine, program: Path) -> None:
    """--json prints one object, and --no-tree leaves the tree out."""
    use_engine(["juicy", "sweet", "sour"])
    result = palmette("run", program, "-a", "fruit=pear", "--json", "--no-tree")
    assert json.loads(result.stdout) == {"variables": {"text": "juicy", "taste": ["sweet", "sour"]}, "returned": 1}
    assert "computed" not in result.stderr


@pytest.mark.parametrize("out", ["run", "run.html", "run.json"])
def test_a_trace(palmette: Run, use_engine: UseEngine, program: Path, tmp_path: Path, out: str) -> None:
    """--trace writes a page and a file for trace viewers, with log-probabilities; the answers are the same."""
    backend = use_engine(["juicy", "sweet", "sour"])
    result = palmette("run", program, "-a", "fruit=pear", "--no-tree", "--trace", tmp_path / out)
    assert result.stdout == 'text: juicy\ntaste: ["sweet", "sour"]\nreturned: 1\n'
    assert f"trace written to {tmp_path / 'run.html'}" in result.stderr
    events = checked_events((tmp_path / "run.json").read_text())
    assert next(event["args"]["text"] for event in events if "text" in event.get("args", {})) == "juicy"
    assert "juicy" in (tmp_path / "run.html").read_text()
    params = [call.node.params for call in backend.calls if isinstance(call.node, Generate)]
    assert [(each.logprobs, each.return_text_in_logprobs) for each in params] == [(5, True)] * 3


def test_a_trace_keeps_what_a_program_says_itself(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """Options of the program, of its gens and of the command line win over those of the trace."""
    backend = use_engine(["a", "b"])
    code = "@pt.function(logprobs=2)\ndef ask(s):\n    s += pt.gen('x') + pt.gen('y', logprobs=1)\n"
    path = file_with(tmp_path, code)
    assert palmette("run", path, "--trace", tmp_path / "t").exit_code == 0
    params = [call.node.params for call in backend.calls if isinstance(call.node, Generate)]
    assert [each.logprobs for each in params] == [2, 1]


def test_a_trace_of_a_program_that_raises(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """What ran before the failure is written all the same."""
    use_engine(["fine"])
    code = "@pt.function\ndef ask(s):\n    s += pt.gen('x')\n    s['x']\n    raise ValueError('no pears')\n"
    result = palmette("run", file_with(tmp_path, code), "--trace", tmp_path / "t")
    assert result.exit_code == 1
    assert "failed at line 6: ValueError: no pears" in result.stderr
    assert "fine" in (tmp_path / "t.html").read_text()


@pytest.mark.parametrize(("ending", "says"), [("pass", ""), ("raise ValueError('no pears')", "no pears")])
def test_a_trace_that_cannot_be_written(
    palmette: Run, use_engine: UseEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, says: str
) -> None:
    """The answers are printed, or the program's own error is told, and the exit code is 1."""

    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pt.RunTrace, "save", full)
    use_engine(["fine"])
    code = f"@pt.function\ndef ask(s):\n    s += pt.gen('x')\n    s['x']\n    {ending}\n"
    result = palmette("run", file_with(tmp_path, code), "--trace", tmp_path / "t")
    assert result.exit_code == 1
    assert "the trace cannot be written: [Errno 28] No space left on device" in result.stderr
    assert says in result.stderr
    assert bool(says) or result.stdout == "x: fine\n"


def test_a_program_calls_another(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """The engine is the default backend while the program runs, and not afterwards."""
    use_engine(["inner"])
    code = """
@pt.function
def inner(s: pt.ProgramState) -> None:
    s += pt.gen("x")

@pt.function
def outer(s: pt.ProgramState) -> None:
    s["from_inner"] = inner()["x"]
"""
    result = palmette("run", f"{file_with(tmp_path, code)}:outer")
    assert result.stdout == "from_inner: inner\n"
    assert pt.default_backend() is None


def test_a_failed_node_fails_the_run(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """A failed generation that nobody read ends in exit code 1; what can be read and the tree are printed first."""
    use_engine(["fine", "letters"])
    code = """
@pt.function
def ask(s: pt.ProgramState) -> None:
    s += pt.gen("good") + " " + pt.gen("bad", regex="[0-9]+")
"""
    result = palmette("run", file_with(tmp_path, code))
    assert result.exit_code == 1
    assert result.stdout == "good: fine\n"
    assert "(failed)" in result.stderr
    assert "error: " in result.stderr
    assert '"bad"' in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unreadable_value_fails_the_run(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """An answer that was cut off before it was an integer is an error too, though its generation succeeded."""
    use_engine(lambda prompt, node: "-")
    code = '@pt.function\ndef ask(s: pt.ProgramState) -> None:\n    s += pt.gen_int("n", stop="x")\n'
    result = palmette("run", file_with(tmp_path, code))
    assert result.exit_code == 1
    assert "error: " in result.stderr


def test_a_program_that_raises(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """The message names the function, the line and the exception; --debug shows the traceback as well."""
    use_engine()
    path = file_with(tmp_path, '@pt.function\ndef ask(s: pt.ProgramState) -> None:\n    raise ValueError("no pears")\n')
    result = palmette("run", path)
    assert result.exit_code == 1
    assert "error: ask of program.py failed at line 4: ValueError: no pears" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in palmette("run", path, "--debug").stderr


def test_values_of_types(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """Objects and calls of tools are shown as JSON; an option of the run is given as an argument is."""
    backend = use_engine(['{"name": "Rex"}', '{"name": "add", "arguments": {"a": 1}}', '{"name": "Tom"}'])
    code = """
import dataclasses, pydantic

@dataclasses.dataclass
class Dog:
    name: str

class Cat(pydantic.BaseModel):
    name: str

@pt.tool
def add(a: int) -> int:
    return a + 1

@pt.function
def ask(s: pt.ProgramState) -> Dog:
    s += pt.gen("dog", type=Dog) + pt.gen("call", tools=[add]) + pt.gen("cat", type=Cat)
    return s["dog"]
"""
    result = palmette("run", file_with(tmp_path, code), "--json", "--no-tree", "--arg", "temperature=0")
    rex = {"name": "Rex"}
    call = {"name": "add", "arguments": {"a": 1}}
    assert json.loads(result.stdout) == {
        "variables": {"dog": rex, "call": call, "cat": {"name": "Tom"}},
        "returned": rex,
    }
    assert backend.calls[0].node.params.temperature == 0  # type: ignore[union-attr]  # a generation


@pytest.mark.parametrize(("code", "status"), [('"no pears"', 1), ("3", 3), ("", 0)])
def test_sys_exit(palmette: Run, use_engine: UseEngine, tmp_path: Path, code: str, status: int) -> None:
    """`sys.exit` in a program leaves as it does in a script: with its code, or its message and 1."""
    use_engine()
    result = palmette(
        "run",
        file_with(tmp_path, f"import sys\n@pt.function\ndef ask(s: pt.ProgramState) -> None:\n    sys.exit({code})\n"),
    )
    assert result.exit_code == status
    assert ("no pears" in result.output) == (status == 1)
    assert "Traceback" not in result.output


def test_ctrl_c(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """An interrupt ends the command with exit code 130 and one word."""
    use_engine()
    path = file_with(tmp_path, "@pt.function\ndef ask(s: pt.ProgramState) -> None:\n    raise KeyboardInterrupt\n")
    result = palmette("run", path)
    assert result.exit_code == 130
    assert result.stderr.endswith("interrupted\n")


def test_a_bound_function(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """Arguments that `bind` gave need no --arg."""
    use_engine(["juicy", "sweet", "sour"])
    path = file_with(tmp_path, PROGRAM + "\npear = describe.bind(fruit='pear')\n")
    assert palmette("run", f"{path}:pear").stdout.startswith("text: juicy\n")


@pytest.mark.usefixtures("no_engine")
class TestRefused:
    """What cannot be run is refused with exit code 2 before an engine starts."""

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["nowhere.py"], "error: nowhere.py does not exist\nhint: give FILE.py, or FILE.py:FUNCTION"),
            (["."], "error: . is a folder, not a file"),
            (["{program}", "--arg", "fruit"], "error: --arg 'fruit' is not name=value"),
            (["{program}", "--arg", "fruit=a", "--arg", "fruit=b"], "error: --arg fruit is given twice"),
            (["{program}"], "error: the program needs an argument 'fruit'\nhint: give --arg fruit=..."),
            (
                ["{program}", "-a", "fruit=a", "-a", "kind=x"],
                "error: the program has no argument 'kind'; its arguments: f",
            ),
            (["{program}", "-a", "fruit=a", "-a", "temperature=-1"], "error: temperature must be a number from 0"),
            (
                ["{program}", "-a", "fruit=a", "--trace", "{program}/x/t"],
                "x is not a folder\nhint: make it, or name another place",
            ),
            (
                ["{program}", "-a", "fruit=a", "--trace", "{folder}/taken"],
                "taken.html cannot be written\nhint: name another place",
            ),
            (
                ["{program}:descibe"],
                "has no function 'descibe' with @pt.function; it has: describe\nhint: did you mean",
            ),
        ],
    )
    def test_words(self, palmette: Run, program: Path, words: list[str], message: str) -> None:
        """One message, and a hint."""
        (program.parent / "taken.html").mkdir()
        result = palmette("run", *(word.format(program=program, folder=program.parent) for word in words))
        assert message in result.stderr
        assert result.exit_code == 2
        assert result.stdout == ""

    @pytest.mark.parametrize(
        ("code", "message", "exit_code"),
        [
            ("x = 1", "defines no function with @pt.function", 2),
            (f"{PROGRAM}{PROGRAM.replace('describe', 'again')}", "defines 2 functions: describe, again", 2),
            ("x = 1 / 0", "cannot be loaded: line 2: ZeroDivisionError: division by zero", 1),
            ("def f(:", "cannot be loaded: line 2: SyntaxError", 1),
        ],
    )
    def test_files(self, palmette: Run, tmp_path: Path, code: str, message: str, exit_code: int) -> None:
        """A file without one function to run, or one that does not load."""
        result = palmette("run", file_with(tmp_path, code))
        assert message in result.stderr
        assert result.exit_code == exit_code
        assert "Traceback" not in result.stderr

    def test_not_python(self, palmette: Run, tmp_path: Path) -> None:
        """A file of another kind is named as such."""
        (tmp_path / "notes.txt").write_text("")
        result = palmette("run", tmp_path / "notes.txt")
        assert "is not a Python file" in result.stderr
        assert result.exit_code == 2
