"""A batch's results file: what is written, and how a later batch goes on with it."""

from __future__ import annotations

import errno
import json
import os
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.lang.recording import RecordingBackend

import palmette as pt
from palmette.lang import batch_results
from palmette.lang.batch_lines import result_line
from palmette.lang.batch_results import ResultsFile
from palmette.lang.outcome import Outcome
from palmette.lang.restored import RestoredRun
from palmette.lang.run import Run

FRUITS = ["pear", "stone", "plum", "fig"]
ANSWERS = {"pear": "juicy", "plum": "sour", "fig": "sweet", "stone": "hard"}


@pt.function
def describe(s: pt.ProgramState, fruit: str) -> str:
    s += f"{fruit} is " + pt.gen("taste")
    if s["taste"] == "hard":
        raise ValueError("no fruit")
    return fruit.upper()


@pt.function
async def describe_async(s: pt.ProgramState, fruit: str) -> str:
    s += f"{fruit} is " + pt.gen("taste")
    if await s.get("taste") == "hard":
        raise ValueError("no fruit")
    return fruit.upper()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def items(fruits: Sequence[str] = FRUITS) -> list[dict[str, str]]:
    return [{"fruit": fruit} for fruit in fruits]


def lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def everything(states: Iterator[pt.ProgramState] | list[pt.ProgramState]) -> list[pt.ProgramState]:
    return sorted(states, key=lambda state: state.place or 0)


STYLES: dict[str, Callable[..., list[pt.ProgramState]]] = {
    "list": lambda given, **options: describe.run_batch(given, **options),
    "iterator": lambda given, **options: list(describe.run_batch(given, generator_style=True, **options)),
    "endless": lambda given, **options: list(describe.run_batch(iter(given), generator_style=True, **options)),
    "as finished": lambda given, **options: everything(describe.run_batch(given, as_finished=True, **options)),
    "async": lambda given, **options: describe_async.run_batch(given, **options),
}


@pytest.mark.parametrize("style", STYLES)
def test_a_line_for_every_item(style: str, path: Path) -> None:
    """In the items' order at the end, with what `palmette batch` writes; a failure names the program's line."""
    states = STYLES[style](items(), backend=pt.MockBackend(ANSWERS), results_file=path, num_threads=2)
    assert [type(state.error()) for state in states] == [type(None), ValueError, type(None), type(None)]
    pear, stone, plum, fig = lines(path)
    assert pear == {
        "index": 0,
        "args": {"fruit": "pear"},
        "variables": {"taste": "juicy"},
        "value": "PEAR",
        "error": None,
    }
    assert (stone["variables"], stone["value"]) == ({"taste": "hard"}, None)
    assert re.fullmatch(r"line \d+: ValueError: no fruit", stone["error"])
    assert [line["index"] for line in (plum, fig)] == [2, 3]


@pytest.mark.parametrize("style", STYLES)
def test_a_later_batch_goes_on(style: str, path: Path) -> None:
    """What is done is read and not run, what failed or was cut off by a kill is run; the states look the same."""
    run = STYLES[style]
    run(items(), backend=pt.MockBackend(ANSWERS), results_file=path)
    path.write_bytes(path.read_bytes()[:-30])  # killed while the last line was written
    backend = RecordingBackend({**ANSWERS, "stone": "soft"})
    states = run(items(), backend=backend, results_file=str(path), resume=True)
    assert [state["taste"] for state in states] == ["juicy", "soft", "sour", "sweet"]
    assert [state.ret_value for state in states] == ["PEAR", "STONE", "PLUM", "FIG"]
    assert [(state.place, state.error()) for state in states] == [(place, None) for place in range(4)]
    assert sorted(call.prompt for call in backend.calls) == ["fig is ", "stone is "]
    assert [(line["index"], line["value"]) for line in lines(path)] == list(enumerate(["PEAR", "STONE", "PLUM", "FIG"]))
    run(items(), backend=backend, results_file=path, resume=True)
    assert backend.opened == 2


def test_more_items_than_the_file_was_begun_with(path: Path) -> None:
    """A batch can grow."""
    backend = RecordingBackend(ANSWERS)
    describe.run_batch(items(["pear", "plum"]), backend=backend, results_file=path)
    states = describe.run_batch(items(["pear", "plum", "fig"]), backend=backend, results_file=path, resume=True)
    assert ([state["taste"] for state in states], backend.opened) == (["juicy", "sour", "sweet"], 3)


def test_fewer_items_than_the_file_was_begun_with(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results of items that are not asked for stay, and are not counted."""
    describe.run_batch(items(["pear", "plum", "fig"]), backend=pt.MockBackend(ANSWERS), results_file=path)
    states = describe.run_batch(
        items(["pear", "plum"]), backend=pt.MockBackend([]), results_file=path, resume=True, progress_bar=True
    )
    assert [state["taste"] for state in states] == ["juicy", "sour"]
    assert "2 were there" in capsys.readouterr().err
    assert [line["index"] for line in lines(path)] == [0, 1, 2]


def test_results_that_were_there_are_read_one_by_one(path: Path) -> None:
    """However many there are before the first item that must run, few are in memory."""
    many = [f"fruit {place}" for place in range(200)]
    with ResultsFile(path, resume=False) as results:
        for place, fruit in enumerate(many):
            results.write(place, result_line(place, {"fruit": fruit}, Outcome({}, place, None), error=None))
    made: weakref.WeakSet[pt.ProgramState] = weakref.WeakSet()
    most = 0

    class Watched(RestoredRun):
        def __init__(self, run: Run, results: ResultsFile) -> None:
            nonlocal most
            super().__init__(run, results)
            made.add(run.state)
            most = max(most, len(made))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palmette.lang.batch.RestoredRun", Watched)
        patch.setattr("palmette.lang.batch.WINDOW", 20)
        states = describe.run_batch(
            items([*many, "pear"]),
            backend=pt.MockBackend(ANSWERS),
            results_file=path,
            resume=True,
            as_finished=True,
            num_threads=2,
        )
        assert sum(state.ret_value is not None for state in states) == len(many) + 1
    assert most <= 20 + 4


def test_a_state_that_was_read_from_a_file(path: Path) -> None:
    """It has variables and the returned value as plain JSON; its text is not there, and says where it came from."""

    class Taste(BaseModel):
        kind: str

    @pt.function
    def typed(s: pt.ProgramState) -> Taste:
        s += "Q: " + pt.gen("taste", type=Taste)
        taste: Taste = s["taste"]
        return taste

    backend = pt.MockBackend(['{"kind": "sour"}'])
    (state,) = typed.run_batch([()], backend=backend, results_file=path)
    assert state["taste"] == Taste(kind="sour")
    (state,) = typed.run_batch([()], backend=backend, results_file=path, resume=True)
    assert (state["taste"], state.ret_value) == ({"kind": "sour"}, {"kind": "sour"})
    assert (list(state.variable_names()), len(state.tree.nodes)) == (["taste"], 0)
    for read in (state.text, state.messages, lambda: list(state.text_iter()), lambda: state.get_meta_info("taste")):
        with pytest.raises(pt.ProgramError, match=f"item 0 was not run: its variables were read from {path}"):
            read()


def test_a_text_that_the_file_has(path: Path) -> None:
    """`palmette batch --text` writes it, and the state has it."""
    path.write_text('{"index": 0, "args": [], "variables": {}, "value": 1, "error": null, "text": "Q: A"}\n')
    (state,) = pt.function(lambda s: None).run_batch([()], backend=pt.MockBackend(), results_file=path, resume=True)
    assert (state.text(), state.ret_value) == ("Q: A", 1)


def test_arguments_of_every_kind(path: Path) -> None:
    """By place or by name, models and text of any kind: on going on they are recognised."""

    class Point(BaseModel):
        x: float

    @pt.function
    def take(s: pt.ProgramState, value: Any, other: Any = None) -> None:
        s += f"{value}"

    backend = RecordingBackend()
    given: list[Any] = [(Point(x=1),), ["\ud800\u2028π"], {"value": {"b": 1, "a": [None]}, "other": {3}}, (1, 2.5)]
    for _ in range(2):
        states = take.run_batch(given, backend=backend, results_file=path, resume=True)
        assert [state.error() for state in states] == [None] * 4
    assert backend.opened == 4
    assert [line["args"] for line in lines(path)] == [
        [{"x": 1.0}],
        ["\ud800\u2028π"],
        {"value": {"b": 1, "a": [None]}, "other": [3]},
        [1, 2.5],
    ]


def test_arguments_that_python_shows_by_their_address(path: Path) -> None:
    """Objects that JSON cannot hold are elsewhere in every process; their results are found all the same."""

    class Fruit:
        """Shown as `<...Fruit object at 0x7f...>`."""

    @pt.function
    def ask(s: pt.ProgramState, fruit: object, kind: str) -> str:
        return kind

    kept = Fruit()  # so that the next one is elsewhere
    ask.run_batch([(kept, "a")], backend=pt.MockBackend(), results_file=path)
    with ResultsFile(path, resume=True) as results:
        assert results.holds(0, [Fruit(), "a"])
        with pytest.raises(pt.ResultsFileError, match="item 0 with the arguments"):
            results.holds(0, [Fruit(), "b"])


def test_a_value_whose_own_code_fails(path: Path) -> None:
    """The item's line says so; the batch goes on."""

    class Shy:
        def __repr__(self) -> str:
            raise LookupError("not today")

    @pt.function
    def shy(s: pt.ProgramState, is_shy: bool) -> object:
        return Shy() if is_shy else 1

    states = shy.run_batch([(True,), (False,)], backend=pt.MockBackend(), results_file=path)
    assert [state.error() for state in states] == [None, None]
    assert [line["error"] for line in lines(path)] == [
        "what it left cannot be written: LookupError: not today",
        None,
    ]


def test_a_type_whose_own_code_fails(path: Path) -> None:
    """What it raises is the error of the item whose answer was to be read as it; the batch goes on."""

    class Picky(BaseModel):
        kind: str

        def model_post_init(self, context: Any) -> None:
            if self.kind == "bad":
                raise LookupError("not that one")

    @pt.function
    def typed(s: pt.ProgramState, kind: str) -> None:
        s += kind + pt.gen("taste", type=Picky)

    answers = {"bad": '{"kind": "bad"}', "good": '{"kind": "good"}'}
    states = typed.run_batch([("bad",), ("good",)], backend=pt.MockBackend(answers), results_file=path)
    assert [state.place for state in states] == [0, 1]
    bad, good = lines(path)
    assert (bad["variables"], bad["error"].rpartition(": ")[2]) == ({}, "not that one")
    assert (good["variables"], good["error"]) == ({"taste": {"kind": "good"}}, None)


def test_leaving_the_interpreter_is_an_items_error(path: Path) -> None:
    """SystemExit in a program is written as any other failure."""

    @pt.function
    def leave(s: pt.ProgramState) -> None:
        raise SystemExit("enough")

    leave.run_batch([()], backend=pt.MockBackend(), results_file=path)
    assert lines(path)[0]["error"].endswith("SystemExit: enough")


# -- refused ---------------------------------------------------------------------------------------------------------


def test_other_items_are_refused(path: Path) -> None:
    """The line is named, with both arguments; nothing runs, and the file stays as it is, failures too."""
    describe.run_batch(items(["stone", "plum"]), backend=pt.MockBackend(ANSWERS), results_file=path)
    before = path.read_bytes()
    backend = RecordingBackend(ANSWERS)
    says = re.escape(
        f'{path} line 2 is of item 1 with the arguments {{"fruit": "plum"}}, but item 1 now has {{"fruit": "fig"}}; '
        "give the items that it was begun with, or write to another file"
    )
    with pytest.raises(pt.ResultsFileError, match=says):
        describe.run_batch(items(["stone", "fig"]), backend=backend, results_file=path, resume=True)
    assert (backend.opened, path.read_bytes()) == (0, before)


@pytest.mark.parametrize(
    ("content", "resume", "says"),
    [
        ('{"index": 0}\n', False, "is not empty; resume=True goes on with it, or write to another file"),
        ('{"index": 0}\n', True, "line 1 is no result of a batch"),
        ('{"index": 0, "args": {}, "error": null}\nnotes\n', True, "line 2 is no result of a batch"),
        ('{"index": -1, "args": {}, "error": null}\n', True, "line 1 is no result of a batch"),
        ('{"index": true, "args": {}, "error": null}\n', True, "line 1 is no result of a batch"),
        ("a line of somebody's own, without an end", True, "line 1 is no result of a batch"),
    ],
)
def test_files_of_others_are_refused(path: Path, content: str, resume: bool, says: str) -> None:
    """A file that no batch wrote stays as it is."""
    path.write_text(content)
    with pytest.raises(pt.ResultsFileError, match=says):
        describe.run_batch(items(), backend=pt.MockBackend(), results_file=path, resume=resume)
    assert path.read_text() == content


def test_one_batch_at_a_time(path: Path) -> None:
    """A second batch that would write the same file is refused while the first one has it; then it goes on."""
    backend = pt.MockBackend(ANSWERS)
    first = describe.run_batch(iter(items(["pear", "plum"])), backend=backend, results_file=path, as_finished=True)
    with pytest.raises(pt.ResultsFileError, match="another batch is writing"):
        describe.run_batch(items(), backend=backend, results_file=path, resume=True)
    next(first)
    first.close()
    assert len(describe.run_batch(items(["pear", "plum"]), backend=backend, results_file=path, resume=True)) == 2
    assert len(lines(path)) == 2


def test_a_batch_that_never_began_leaves_no_file(path: Path) -> None:
    """Neither where an item is wrong nor where nobody asked for a state; a batch of no items leaves an empty one."""
    backend = pt.MockBackend(ANSWERS)
    with pytest.raises(TypeError, match="item 1"):
        describe.run_batch([("pear",), ()], backend=backend, results_file=path)
    assert not path.exists()
    states = describe.run_batch(items(), backend=backend, results_file=path, as_finished=True)
    assert path.exists()
    del states
    assert not path.exists()
    assert describe.run_batch([], backend=backend, results_file=path) == []
    assert path.read_bytes() == b""


# -- what may go wrong -----------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(path: Path) -> None:
    """Lines are whole, and none is of a program that the interrupt has cancelled."""

    def given() -> Iterator[dict[str, str]]:
        yield {"fruit": "pear"}
        yield {"fruit": "plum"}
        while not (path.exists() and path.read_bytes().count(b"\n") == 1):
            pass
        raise KeyboardInterrupt

    backend = RecordingBackend(ANSWERS, latency_s=lambda call: 60.0 if "plum" in call.prompt else 0.0)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        list(describe.run_batch(given(), backend=backend, results_file=path, as_finished=True))
    assert interrupt.value.__notes__ == [
        f"results so far: 1, in {path}; run_batch(..., results_file={str(path)!r}, resume=True) goes on with them"
    ]
    assert [(line["index"], line["error"]) for line in lines(path)] == [(0, None)]
    states = describe.run_batch(
        items(["pear", "plum"]), backend=pt.MockBackend(ANSWERS), results_file=path, resume=True
    )
    assert [state["taste"] for state in states] == ["juicy", "sour"]


def test_a_full_disk_ends_the_batch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says so; what was written before is whole, and the batch can be gone on with."""
    write = FileIO.write

    class Full(FileIO):
        def write(self, data: Any) -> int:
            if os.fstat(self.fileno()).st_size > 60:
                write(self, bytes(data)[:20])
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(self, data)

    monkeypatch.setattr(batch_results, "FileIO", Full)
    backend = pt.MockBackend(ANSWERS)
    with pytest.raises(pt.ResultsFileError, match=f"{path} cannot be written: No space left on device"):
        describe.run_batch(items(["pear", "plum", "fig"]), backend=backend, results_file=path, num_threads=1)
    assert [line["index"] for line in lines(path)] == [0]
    monkeypatch.undo()
    assert len(describe.run_batch(items(["pear", "plum"]), backend=backend, results_file=path, resume=True)) == 2


def test_results_that_cannot_be_put_in_order(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are all there, and the batch has ended well: a warning says what was not done."""

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copymode", full)
    results = ResultsFile(path, resume=False)
    for place in (1, 0):
        results.write(place, line_of(place, None))
    with pytest.warns(RuntimeWarning, match="holds all results, but cannot be put in order: No space"):
        results.finish()
    results.close()
    assert [line["index"] for line in lines(path)] == [1, 0]
    assert list(path.parent.iterdir()) == [path]


@given(
    order=st.permutations(range(5)),
    failed=st.sets(st.integers(0, 4)),
    cut=st.integers(0, 400),
)
def test_a_kill_at_any_byte(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], failed: set[int], cut: int
) -> None:
    """Whatever byte the file ends at: whole lines without an error are done, the others can be written anew."""
    path = tmp_path_factory.mktemp("killed") / "out.jsonl"
    with ResultsFile(path, resume=False) as results:
        for place in order:
            results.write(place, line_of(place, "bad" if place in failed else None))
        written = path.read_bytes()
    path.write_bytes(written[: len(written) - cut])
    whole = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    done = {line["index"] for line in whole if line["error"] is None}
    with ResultsFile(path, resume=True) as results:
        assert results.count_done(None) == len(done)
        assert {place for place in range(5) if results.holds(place, [place])} == done
        assert all(results.result_of(place)["value"] == place for place in done)
        for place in set(range(5)) - done:
            results.write(place, line_of(place, None))
    assert [(line["index"], line["error"]) for line in lines(path)] == [(place, None) for place in range(5)]
    assert [each.name for each in path.parent.iterdir()] == ["out.jsonl"]


def line_of(place: int, error: str | None) -> str:
    return result_line(place, [place], Outcome({"x": "é" * place}, place, None), error=error)
