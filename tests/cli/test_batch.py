"""`palmette batch`: a program for every line of a file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run, UseEngine

from palmette.lang.batch_progress import BatchCounts, shown_progress

PROGRAM = """
import palmette as pt

@pt.function
def describe(s: pt.ProgramState, fruit: str, count: int = 1) -> int:
    s += f"{count} x {fruit}: " + pt.gen("text", regex="[a-z]+", temperature=0)
    if s["text"] == "stone":
        raise ValueError("no fruit")
    return count
"""
SLOW_INPUT = """
import signal
from contextlib import contextmanager

import palmette as pt
from palmette.cli import engine
from palmette.cli.app import app

@contextmanager
def launch(*args, **settings):
    yield pt.MockBackend({"": "juicy"})

signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells switch off for what runs in the background
pt.runtime.launch = launch
engine.fetch_model = lambda *args: None
app()
"""
ANSWERS = {"pear": "juicy", "plum": "sour", "fig": "stone", "nut": "HARD"}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def items_of(folder: Path, *lines: object) -> Path:
    path = folder / "items.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def results(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_for_every_item(palmette: Run, use_engine: UseEngine, program: Path, tmp_path: Path) -> None:
    """Standard output holds one JSON object an item, in order, and nothing else; blank lines are no items."""
    use_engine(ANSWERS)
    result = palmette("batch", program, items_of(tmp_path, {"fruit": "pear"}, "", {"fruit": "plum", "count": 2}))
    assert result.exit_code == 0
    assert results(result.stdout) == [
        {"index": 0, "args": {"fruit": "pear"}, "variables": {"text": "juicy"}, "value": 1, "error": None},
        {"index": 1, "args": {"fruit": "plum", "count": 2}, "variables": {"text": "sour"}, "value": 2, "error": None},
    ]
    assert "2 items in" in result.stderr


def test_a_failed_item_stays_in_its_place(palmette: Run, use_engine: UseEngine, program: Path, tmp_path: Path) -> None:
    """What the program raised and what the engine reported are the items' errors; the others are done; exit code 1."""
    use_engine(ANSWERS)
    items = items_of(tmp_path, *({"fruit": fruit} for fruit in ("fig", "pear", "nut", "plum")))
    result = palmette("batch", program, items, "--text")
    assert result.exit_code == 1
    fig, pear, nut, plum = results(result.stdout)
    assert fig["error"] == "line 8: ValueError: no fruit"
    assert (fig["variables"], fig["value"], fig["text"]) == ({"text": "stone"}, None, "1 x fig: stone")
    assert nut["error"].startswith("NodeFailedError: ")
    assert (nut["variables"], nut["text"]) == ({}, None)
    assert (pear["text"], plum["error"]) == ("1 x pear: juicy", None)
    assert "4 items in" in result.stderr
    assert "2 failed" in result.stderr


def test_arguments_for_every_item(palmette: Run, use_engine: UseEngine, program: Path, tmp_path: Path) -> None:
    """--arg gives arguments and sampling options that all items share; an item's own win."""
    backend = use_engine(ANSWERS)
    items = items_of(tmp_path, {"fruit": "pear"}, {"fruit": "plum", "count": 2, "seed": 5})
    result = palmette("batch", program, items, "-a", "count=7", "-a", "seed=3", "--concurrency", "1")
    assert [line["value"] for line in results(result.stdout)] == [7, 2]
    assert [call.node.params.seed for call in backend.calls] == [3, 5]  # type: ignore[union-attr]  # generations


def test_items_with_a_common_beginning_follow_each_other(
    palmette: Run, use_engine: UseEngine, program: Path, tmp_path: Path
) -> None:
    """Programs whose arguments begin alike are run one after another; the lines still end up in the items' order."""
    backend = use_engine({"": "ok"})
    fruits = [f"{'pear' * 40} {i}" if i % 2 else f"{'plum' * 40} {i}" for i in range(8)]
    items = items_of(tmp_path, *({"fruit": fruit} for fruit in fruits))
    output = tmp_path / "out.jsonl"
    assert palmette("batch", program, items, "-o", output, "--concurrency", "1").exit_code == 0
    kinds = [call.prompt[4:8] for call in backend.calls]
    assert sorted(kinds) in (kinds, kinds[::-1])
    assert [line["args"]["fruit"] for line in results(output.read_text())] == fruits


def test_values_that_are_objects(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """A value of a type is written as JSON, wherever it stands; what JSON does not have is written as text."""
    use_engine(['{"name": "Rex"}'])
    path = tmp_path / "program.py"
    path.write_text("""
import dataclasses, math, pydantic
import palmette as pt

class Pet(pydantic.BaseModel):
    name: str

@dataclasses.dataclass
class Pair:
    pet: Pet
    kinds: set

@pt.function
def ask(s: pt.ProgramState) -> object:
    s += pt.gen("pet", type=Pet)
    s["pair"] = Pair(s["pet"], {"dog"})
    s["odd"] = {(1, 2): math.nan}
    return [s["pet"], object]
""")
    (line,) = results(palmette("batch", path, items_of(tmp_path, {})).stdout)
    assert line["variables"]["pet"] == {"name": "Rex"}
    assert line["variables"]["pair"] == {"pet": {"name": "Rex"}, "kinds": ["dog"]}
    assert line["variables"]["odd"] == "{(1, 2): nan}"
    assert line["value"] == [{"name": "Rex"}, "<class 'object'>"]


def test_standard_input(palmette: Run, use_engine: UseEngine, program: Path) -> None:
    """Lines that cannot be run are items that failed, in their places, and name their line."""
    use_engine(ANSWERS)
    lines = '{"fruit": "pear"}\nnot json\n\n[1]\n{"fruit": "plum"}\n{"sort": 1}\n'
    result = palmette("batch", program, "-", stdin=lines)
    assert result.exit_code == 1
    found = results(result.stdout)
    assert [line["index"] for line in found] == [0, 1, 2, 3, 4]
    assert [line["variables"].get("text") for line in found] == ["juicy", None, None, "sour", None]
    assert found[1]["error"].startswith("standard input line 2 is not JSON: ")
    assert found[2]["error"] == "standard input line 4 is no JSON object of arguments, but [1]"
    assert found[4]["error"] == "standard input line 6: the program needs an argument 'fruit'"


def test_text_of_every_kind(palmette: Run, use_engine: UseEngine, program: Path, tmp_path: Path) -> None:
    """Any character of JSON survives, a half of a surrogate pair and a line separator among them."""
    use_engine({"": "ok"})
    fruits = ["π🍐", "\u2028", "\ud800"]
    result = palmette(
        "batch", program, items_of(tmp_path, *({"fruit": fruit} for fruit in fruits)), "-o", tmp_path / "o"
    )
    assert result.exit_code == 0
    lines = (tmp_path / "o").read_bytes().split(b"\n")
    assert [json.loads(line)["args"]["fruit"] for line in lines[:-1]] == fruits


def test_resume(palmette: Run, use_engine: UseEngine, program: Path, tmp_path: Path) -> None:
    """What is there without an error is kept and not run again; failed items and a line cut short are run."""
    backend = use_engine(ANSWERS)
    output = tmp_path / "out.jsonl"
    items = items_of(tmp_path, *({"fruit": fruit} for fruit in ("pear", "fig", "plum")))
    assert palmette("batch", program, items, "--output", output).exit_code == 1
    kept, failed, cut = output.read_text().splitlines(keepends=True)
    output.write_text(kept + failed + cut[:20])
    again = {**ANSWERS, "fig": "sweet"}
    backend = use_engine(again)
    result = palmette("batch", program, items, "--output", output, "--resume")
    assert result.exit_code == 0
    assert "2 items" in result.stderr
    assert "1 were there" in result.stderr
    assert [(line["index"], line["variables"]["text"]) for line in results(output.read_text())] == [
        (0, "juicy"),
        (1, "sweet"),
        (2, "sour"),
    ]
    assert len(backend.calls) == 2
    assert palmette("batch", program, items, "--output", output, "--resume").exit_code == 0
    assert len(backend.calls) == 2


def test_resume_with_fewer_items(palmette: Run, use_engine: UseEngine, program: Path, tmp_path: Path) -> None:
    """Results of items that are not asked for stay, and are not counted."""
    output = tmp_path / "out.jsonl"
    backend = use_engine({**ANSWERS, "fig": "sweet"})
    fruits = [{"fruit": fruit} for fruit in ("pear", "plum", "fig")]
    assert palmette("batch", program, items_of(tmp_path, *fruits), "-o", output).exit_code == 0
    wrong = output.read_text().replace('"value": 1, "error": null', '"value": null, "error": "lost"', 1)
    output.write_text(wrong)
    result = palmette("batch", program, items_of(tmp_path, *fruits[:2]), "-o", output, "--resume")
    assert result.exit_code == 0
    assert "1 items in" in result.stderr
    assert "1 were there" in result.stderr
    assert [line["error"] for line in results(output.read_text())] == [None] * 3
    assert len(backend.calls) == 4


@pytest.mark.usefixtures("no_engine")
def test_nothing_is_left_to_do(palmette: Run, program: Path, tmp_path: Path) -> None:
    """No engine is started for items that are all done."""
    output = tmp_path / "out.jsonl"
    lines = [{"index": place, "args": {"fruit": "pear"}, "error": None} for place in (1, 0)]
    output.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    items = items_of(tmp_path, {"fruit": "pear"}, {"fruit": "pear"})
    result = palmette("batch", program, items, "-o", output, "--resume")
    assert result.exit_code == 0
    assert f"nothing is left to do: {output} has the results of all 2 items" in result.stderr
    assert [line["index"] for line in results(output.read_text())] == [0, 1]


def test_standard_input_that_comes_slowly(program: Path, tmp_path: Path) -> None:
    """The line of an item is written before the next item is there, and Ctrl-C ends the wait for it."""
    script = tmp_path / "batch.py"
    script.write_text(SLOW_INPUT)
    words = [sys.executable, str(script), "batch", str(program), "-"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"fruit": "pear"}\n')
        process.stdin.flush()
        first = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        told = process.stderr.read().decode()
    assert first["variables"] == {"text": "juicy"}
    assert told.splitlines()[-1] == "interrupted"


def test_ctrl_c_leaves_whole_lines(palmette: Run, use_engine: UseEngine, program: Path, tmp_path: Path) -> None:
    """An interrupt ends the batch with exit code 130; the lines that were written are whole, and --resume goes on."""
    program.write_text(PROGRAM.replace('raise ValueError("no fruit")', "raise KeyboardInterrupt"))
    use_engine(ANSWERS)
    output = tmp_path / "out.jsonl"
    items = items_of(tmp_path, *({"fruit": fruit} for fruit in ("pear", "plum", "fig", "pear", "plum")))
    result = palmette("batch", program, items, "-o", output, "--concurrency", "1")
    assert result.exit_code == 130
    assert output.read_text().endswith("\n") or output.read_text() == ""
    written = len(results(output.read_text()))
    assert written < 3
    use_engine({**ANSWERS, "fig": "sweet"})
    assert palmette("batch", program, items, "-o", output, "--resume").exit_code == 0
    assert [line["index"] for line in results(output.read_text())] == [0, 1, 2, 3, 4]


def test_a_deadline_for_each_item(palmette: Run, use_engine: UseEngine, program: Path, tmp_path: Path) -> None:
    """An item that takes too long fails; that is its error."""
    use_engine(ANSWERS, latency_s=60)
    result = palmette("batch", program, items_of(tmp_path, {"fruit": "pear"}), "--timeout-s", "0.05")
    assert result.exit_code == 1
    assert results(result.stdout)[0]["error"].startswith("DeadlineExceededError: ")


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal standard error shows how far the batch is, and how many failed; standard output stays clean."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    counts = BatchCounts(3, before=1)
    with shown_progress(counts, "") as show:
        counts.add_failed()
        show()
        counts.done += 1
        show()
    shown = capsys.readouterr()
    assert "3/3" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.err)
    assert "1 failed" in shown.err
    assert shown.out == ""


def test_sys_exit(palmette: Run, use_engine: UseEngine, program: Path, tmp_path: Path) -> None:
    """A program that leaves by `sys.exit` ends the batch; the lines before it are there."""
    program.write_text("import sys\n" + PROGRAM.replace('raise ValueError("no fruit")', 'sys.exit("enough")'))
    use_engine(ANSWERS)
    items = items_of(tmp_path, *({"fruit": fruit} for fruit in ("pear", "fig", "plum")))
    result = palmette("batch", program, items, "--concurrency", "1")
    assert result.exit_code == 1
    assert "enough" in result.output
    assert len([line for line in result.stdout.splitlines() if line.startswith("{")]) <= 1


@pytest.mark.usefixtures("no_engine")
class TestRefused:
    """What cannot be run is refused with exit code 2 before an engine starts."""

    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            (['{"fruit": "pear"}', "{"], "items.jsonl line 2 is not JSON: "),
            (['{"fruit": NaN}'], "items.jsonl line 1 is not JSON: NaN is no JSON value"),
            (["3", "{}"], "line 1 is no JSON object of arguments, but 3\nhint: 2 of 2 lines cannot be run"),
            (["{}"], "items.jsonl line 1: the program needs an argument 'fruit'\nhint: nothing was run"),
            (['{"fruit": "a", "sort": 1}'], "line 1: the program has no argument 'sort'; its arguments: fruit, count"),
            (['{"fruit": "a", "top_p": 2}'], "line 1: top_p must be a number from 0 to 1, not 2"),
        ],
    )
    def test_lines(self, palmette: Run, program: Path, tmp_path: Path, lines: list[str], message: str) -> None:
        """A file is checked whole before anything runs, and the first wrong line is named."""
        result = palmette("batch", program, items_of(tmp_path, *lines))
        assert message in result.stderr
        assert (result.exit_code, result.stdout) == (2, "")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["nowhere.jsonl"], "error: nowhere.jsonl cannot be read: No such file or directory\nhint: a file with"),
            (["{items}", "--resume"], "error: --resume goes with --output"),
            (["{items}", "--timeout-s", "0"], "error: --timeout-s must be above 0, not 0"),
            (["{items}", "--output", "{items}"], "items.jsonl is not empty\nhint: --resume goes on with it"),
            (["{items}", "-o", "{items}", "--resume"], "items.jsonl line 1 is no result of a batch; only a file"),
            (["{items}", "-o", "/nowhere/out.jsonl"], "error: /nowhere/out.jsonl cannot be written: No such file"),
            (["{items}", "--concurrency", "0"], "--concurrency"),
        ],
    )
    def test_words(self, palmette: Run, program: Path, tmp_path: Path, words: list[str], message: str) -> None:
        """One message, and a hint; the files stay as they are."""
        items = items_of(tmp_path, {"fruit": "pear"}, {"fruit": "plum"})
        before = items.read_text()
        result = palmette("batch", program, *(word.format(items=items) for word in words))
        assert message in result.stderr
        assert result.exit_code == 2
        assert items.read_text() == before
        assert sorted(path.suffix for path in tmp_path.iterdir() if path.is_file()) == [".jsonl", ".py"]

    def test_other_items(self, palmette: Run, program: Path, tmp_path: Path) -> None:
        """An output of other items is not gone on with."""
        line = {"index": 0, "args": {"fruit": "fig"}, "variables": {}, "value": None, "error": None}
        (tmp_path / "out.jsonl").write_text(json.dumps(line) + "\n")
        items = items_of(tmp_path, {"fruit": "pear"})
        result = palmette("batch", program, items, "-o", tmp_path / "out.jsonl", "--resume")
        assert (
            'out.jsonl line 1 is of item 0 with the arguments {"fruit": "fig"}, but item 0 now has {"fruit": "pear"}'
            in result.stderr
        )
        assert result.exit_code == 2


@pytest.mark.default_model
def test_on_the_default_model(program: Path, tmp_path: Path, default_model_folder: Path) -> None:
    """Three items from end to end, as a process."""
    program.write_text(PROGRAM.replace("[a-z]+", "[a-z]{1,8}"))
    items = items_of(tmp_path, *({"fruit": fruit} for fruit in ("pear", "plum", "fig")))
    output = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "palmette", "batch", program, items, "-o", output, "-m", default_model_folder]
    environment = {name: value for name, value in os.environ.items() if name != "PALMETTE_CACHE"}
    answer = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)
    assert (answer.returncode, answer.stdout) == (0, ""), answer.stderr
    found = results(output.read_text())
    assert [line["args"]["fruit"] for line in found] == ["pear", "plum", "fig"]
    assert all(line["variables"]["text"].isalpha() for line in found)
