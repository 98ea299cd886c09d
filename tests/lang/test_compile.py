"""What a program builds, known without running it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import palmette as pt
from palmette.lang.backend import EventSink
from palmette.lang.dry_execution import ValueUnknown
from palmette.lang.mock_usage import count_tokens
from palmette.runtime.engine import Engine
from palmette.runtime.program import Failed, Generate, ModelInfo, Node, Reference, Select, Text

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Refusing:
    """A backend that keeps what it is sent and fails every call at once: programs end at the first value they read."""

    def __init__(self) -> None:
        self.model_info: ModelInfo = pt.MockBackend().model_info
        self.messages: list[tuple[Node, ...]] = []

    def open(self, events: EventSink, *, program: str | None = None) -> Refusing:
        self.events = events
        return self

    def extend(self, nodes: Sequence[Node]) -> None:
        self.messages.append(tuple(nodes))
        for node in nodes:
            if isinstance(node, Generate | Select):
                self.events(Failed(node.id, "RequestError", "refused"))

    def close(self) -> None:
        pass


def first_message(function: pt.Function, *args: Any) -> tuple[Node, ...]:
    """What a run sends before it waits for the first time."""
    backend = Refusing()
    with contextlib.suppress(pt.NodeFailedError):
        function.run(*args, backend=backend)
    return backend.messages[0]


class Silent(pt.MockBackend):
    """A backend on which nothing may run."""

    def open(self, events: EventSink, *, program: str | None = None) -> Any:
        raise AssertionError("a program that is compiled opened a session")


@pt.function
def judge(s: pt.ProgramState, essay: str) -> None:
    s += pt.system("You grade essays.") + pt.user(essay)
    marks = s.fork(3)
    for branch, aspect in zip(marks, ["clarity", "evidence", "style"], strict=True):
        branch += pt.user(f"Grade the {aspect}.") + pt.assistant(pt.gen("grade", regex="[1-5]", n=2))
    marks.join()
    s += pt.user("Pass?") + pt.assistant(pt.select("verdict", ["pass", "fail"]))
    s += pt.user("Why?") + pt.assistant(pt.gen("why", max_tokens=9))


def test_the_shape_of_a_program() -> None:
    """Branches, calls with each of several answers, the longest chain, and the text before the first call."""
    compiled = judge.compile("Bicycles!", backend=Silent())
    assert compiled.is_complete
    assert compiled.ending == ""
    assert (compiled.branches, compiled.expected_calls, compiled.depth) == (4, 3 * 2 + 2, 2)
    start = "SYSTEM: You grade essays.\nUSER: Bicycles!\n"
    assert compiled.leading_text == start + "USER: Pass?\nASSISTANT: "
    assert compiled.constant_characters == sum(len(node.text) for node in compiled.nodes if isinstance(node, Text))
    grading = "".join(f"USER: Grade the {aspect}.\nASSISTANT: " for aspect in ("clarity", "evidence", "style"))
    assert compiled.shared_characters == len(start + grading + "USER: Pass?\nASSISTANT: ")


def test_tokens_are_those_of_the_backend() -> None:
    """A mock counts words; without a backend that knows its tokenizer only characters are known, and it says so."""
    compiled = judge.compile("Bicycles!", backend=Silent())
    texts = [node.text for node in compiled.nodes if isinstance(node, Text)]
    assert compiled.constant_tokens == sum(map(count_tokens, texts))
    unknown = judge.compile("Bicycles!")
    assert unknown.constant_tokens is None
    assert unknown.shared_tokens is None
    assert f"{unknown.constant_characters} characters of constant text" in str(unknown).splitlines()[0]
    assert unknown.nodes == compiled.nodes


def test_tokens_of_an_engine(tiny_engine: Engine) -> None:
    """Text between two calls is counted as the engine encodes it: as one string, in however many nodes it came."""

    @pt.function
    def pieces(s: pt.ProgramState) -> None:
        s += "The pear"
        s += " tree is na" + pt.gen("x", max_tokens=1)
        branches = s.fork(2)
        branches += ["tive", " to Europe" + pt.gen("y", max_tokens=1)]

    compiled = pieces.compile(backend=tiny_engine)
    tokenizer = tiny_engine.tokenizer
    state = pieces.run(backend=tiny_engine)
    first = state.get_meta_info("x")["prompt_tokens"]
    assert [shape.tokens for shape in compiled.shapes[:2]] != [0, 0]
    assert sum(shape.tokens or 0 for shape in compiled.shapes[:2]) == first
    assert compiled.shapes[4].tokens == len(tokenizer.encode_text("tive"))
    assert compiled.shapes[5].tokens == len(tokenizer.encode_text(" to Europe"))
    assert compiled.shared_tokens == first


def test_it_is_drawn() -> None:
    """As a state's tree, with what is asked of the calls, and where the program stops being known."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "One two." + pt.gen("first", max_tokens=3)
        branches = s.fork(2)
        branches += [" a" + pt.gen("x", regex="[ab]", n=2), " b" + pt.select("y", ["p", "q"])]
        branches.join()
        if s["first"]:
            s += "never"

    compiled = program.compile(backend=Silent())
    lines = str(compiled).splitlines()
    assert lines[0] == "program  8 nodes · 3 branches · 4 calls, 2 in a row · 4 tokens of constant text, 3 shared"
    assert [line.split()[-2:] for line in lines if "text" in line][1:] == [["2", "4"], ["1", "2"], ["1", "1"]]
    assert [" ".join(line.split()) for line in lines if "(" in line] == [
        "gen first (max_tokens=3)",
        "│ gen x (n=2, regex [ab], max_tokens=128)",
        "select y (p | q)",
    ]
    assert lines[-1].startswith("data-dependent from test_compile.py:")
    assert lines[-1].endswith(': if s["first"]:')
    assert max(map(len, lines)) <= 100
    assert "(planned)" in str(compiled.view)
    html = compiled._repr_html_()
    assert "4 tokens of constant text" in html
    assert "data-dependent from" in html
    assert "p | q" in html


def functions_of(path: Path) -> Iterator[pt.Function]:
    spec = importlib.util.spec_from_file_location(f"compiled_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return (value for value in vars(module).values() if isinstance(value, pt.Function))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples(path: Path) -> None:
    """Every example compiles to exactly what a run sends before it first waits, and nothing is sent."""
    for function in functions_of(path):
        args = ("a cyclist", "Lanes are good.") if function.__name__ == "panelist" else ()
        compiled = function.compile(*args, backend=Silent())
        assert compiled.nodes == first_message(function, *args)
        assert str(compiled)


Step = str | tuple[str, Any]
STEPS = st.recursive(
    st.lists(
        st.one_of(
            st.sampled_from(["text", "gen", "select", "message", "reference", "scope", "copy", "tools"]),
            st.sampled_from(["gen", "read", "iterate"]),
        ),
        max_size=6,
    ),
    lambda inner: st.lists(
        st.one_of(
            st.sampled_from(["text", "gen", "message", "read"]),
            st.tuples(st.just("fork"), st.lists(inner, min_size=1, max_size=3)),
        ),
        max_size=6,
    ),
    max_leaves=8,
)


@pt.tool
def weather(city: str) -> str:
    """The weather."""
    return city


def take(s: pt.ProgramState, step: Any, place: int) -> None:
    name = f"v{place}"
    match step:
        case "text":
            s += f"text {place}. "
        case "gen":
            s += "A: " + pt.gen("x", n=1 + place % 2)
        case "select":
            s += pt.select("x", ["a", "b"])
        case "message":
            s += pt.user("Hello?") + pt.assistant(pt.gen(name, stop="\n"))
        case "reference":
            s += pt.gen("r")
            s += "Again: " + s.ref("r")
        case "scope":
            with s.var_scope(name), s.user():
                s += "scoped"
        case "copy":
            with s.copy() as branch:
                branch += "copy" + pt.gen(name)
        case "tools" if not s.variable_names():
            s.use_tools(weather)
        case "read" if "x" in s:
            s["x"]
        case "iterate" if "x" in s:
            list(s.text_iter())
        case ("fork", inner):
            branches = s.fork(len(inner))
            for branch, steps in zip(branches, inner, strict=True):
                build(branch, steps)
            branches.join()


def build(s: pt.ProgramState, steps: Sequence[Any]) -> None:
    for place, step in enumerate(steps):
        take(s, step, place)


@given(STEPS)
def test_it_is_what_a_run_sends_first(steps: list[Any]) -> None:
    """The nodes are those of a run's first message, and they are all of them where nothing is read."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "start"
        build(s, steps)

    compiled = program.compile(backend=Silent())
    backend = Refusing()
    try:
        program.run(backend=backend)
        ended = True
    except pt.NodeFailedError:
        ended = False
    assert compiled.nodes == backend.messages[0]
    assert compiled.is_complete == ended
    if compiled.is_complete:
        assert len(backend.messages) == 1
    assert compiled.depth <= compiled.expected_calls
    assert compiled.shared_characters <= compiled.constant_characters


# -- where it stops ----------------------------------------------------------------------------------------------------


def test_a_read_ends_it() -> None:
    """No `except Exception` takes the signal, `finally` blocks run, and what they append is not taken for the tree."""
    steps = []

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "one" + pt.gen("x")
        try:
            with s.user():
                s += f"read {s['x']}"
        except Exception:
            steps.append("swallowed")
        finally:
            steps.append("finally")
            s += "cleaning up"
        steps.append("went on")

    compiled = program.compile()
    assert steps == ["finally"]
    assert [node.text for node in compiled.nodes if isinstance(node, Text)] == ["one", "USER: "]
    assert compiled.stopped_at is not None
    assert compiled.stopped_at.code == """s += f"read {s['x']}\""""
    assert not compiled.is_complete


def test_who_catches_everything_adds_nothing() -> None:
    """A program that goes on after the signal is ended at its next append."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "one" + pt.gen("x")
        try:
            s["x"]
        except BaseException:
            s += "two"
        s += "three"

    assert len(program.compile().nodes) == 2


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s["x"],
        lambda s: s.text(),
        lambda s: s.messages(),
        lambda s: s.error(),
        lambda s: s.get_meta_info("x"),
        lambda s: next(s.text_iter("x")),
        lambda s: next(s.value_iter("x")),
        lambda s: s.fork(2).join("concat") or s.fork(1)[0]["x"],
    ],
)
def test_every_kind_of_read_ends_it(read: Any) -> None:
    """Values, texts, messages, errors, counts and pieces are all unknown."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.user("one") + pt.assistant(pt.gen("x"))
        s += pt.user("two")
        read(s)
        s += "never" + pt.gen("y")

    compiled = program.compile()
    assert compiled.expected_calls == 1
    assert compiled.stopped_at is not None


def test_waiting_without_reading_does_not_end_it() -> None:
    """`sync` only waits; references need no value; a tool that is only offered is not called."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s.use_tools(weather)
        s += pt.user("Weather?") + pt.assistant(pt.gen("call", tools=[weather]))
        s.sync()
        s += pt.user(pt.template("You said {call}.", call=s.ref("call")))

    compiled = program.compile()
    assert compiled.is_complete
    assert any(isinstance(node, Reference) for node in compiled.nodes)


def test_a_template_that_is_written_anew_needs_what_was_said() -> None:
    """Where a chat template changes earlier messages, the second question depends on the first answer."""
    template = "{% for m in messages %}{{ m.role if loop.last else '' }}: {{ m.content }}|{% endfor %}"

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += pt.user("one") + pt.assistant(pt.gen("x"))
        s += pt.user("two")

    compiled = program.compile(backend=Silent(chat_template=template))
    assert compiled.expected_calls == 1
    assert compiled.stopped_at is not None
    assert program.compile(
        backend=Silent(chat_template=CHATML, special_tokens=["<|im_start|>", "<|im_end|>"])
    ).is_complete


def test_maps_are_followed_in_every_branch() -> None:
    """Each function of `forks.map` goes up to the first value that it reads; what follows the map is unknown."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "start"

        def check(branch: pt.ProgramState, fact: str) -> bool:
            with branch.user():
                branch += fact + pt.gen("x")
                return bool(branch["x"] == "yes")

        s.fork(40).map(check, [f"fact {number}" for number in range(40)])
        s += "after"

    compiled = program.compile()
    assert compiled.expected_calls == 40
    assert [node.text for node in compiled.nodes if isinstance(node, Text)][-1] == "fact 39"
    assert compiled.stopped_at is not None
    assert "branch" in compiled.stopped_at.code


def test_a_map_that_reads_nothing() -> None:
    """The program goes on, and what the functions return is there."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        def check(branch: pt.ProgramState, fact: str) -> str:
            branch += fact + pt.gen("x")
            return fact

        s += "".join(s.fork(2).map(check, ["a", "b"]))

    compiled = program.compile()
    assert compiled.is_complete
    assert [node.text for node in compiled.nodes if isinstance(node, Text)] == ["a", "b", "ab"]


def test_exceptions_come_out() -> None:
    """What the program raises before a read is raised, with a note; so it is in a branch of a map."""

    @pt.function
    def program(s: pt.ProgramState, in_branch: bool) -> None:
        s += "one" + pt.gen("x")

        def fail(branch: pt.ProgramState) -> None:
            raise ValueError("my own")

        if in_branch:
            s.fork(2).map(fail)
        fail(s)

    for in_branch in (False, True):
        with pytest.raises(ValueError, match="my own") as raised:
            program.compile(in_branch)
        assert "nothing was sent" in raised.value.__notes__[-1]
    with pytest.raises(TypeError, match=r"program.compile\(\): missing"):
        program.compile()
    with pytest.raises(TypeError, match="a backend is"):
        program.compile(True, backend="engine")  # type: ignore[arg-type]  # that is what it refuses


def test_programs_that_run_programs() -> None:
    """A program that is run from within is not: the outer one needs its values, and stops."""
    backend = Silent()

    @pt.function
    def inner(s: pt.ProgramState) -> None:
        s += "inner" + pt.gen("x")

    @pt.function
    def outer(s: pt.ProgramState, how: str) -> None:
        s += "outer"
        if how == "compile":
            s += str(inner.compile().expected_calls)
        elif how == "run_batch":
            inner.run_batch([{}], backend=backend)
        else:
            getattr(inner, how)(backend=backend)
        s += "after"

    for how in ("run", "stream", "run_batch"):
        compiled = outer.compile(how)
        assert [node.text for node in compiled.nodes if isinstance(node, Text)] == ["outer"]
        assert not compiled.is_complete
    assert outer.compile("compile").leading_text == "outer1after"
    assert inner.run(backend=pt.MockBackend(["fine"]))["x"] == "fine"


def test_threads_of_the_program(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the program's own ends quietly where it reads, and what follows from it is no error."""
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # in the place of pytest's, which minds all

    @pt.function
    def program(s: pt.ProgramState, pool: bool) -> None:
        s += "one" + pt.gen("x")
        if pool:
            with ThreadPoolExecutor(1) as threads:
                found = [threads.submit(lambda: s["x"]).result()]
        else:
            found = []
            thread = threading.Thread(target=lambda: found.append(s["x"]))
            thread.start()
            thread.join()
        s += found[0]

    for pool in (False, True):
        compiled = program.compile(pool)
        assert len(compiled.nodes) == 2
        assert not compiled.is_complete
    assert capfd.readouterr().err == ""


def test_a_state_that_was_kept_has_no_values() -> None:
    """After compiling, reads and appends say that nothing ran."""
    kept: list[pt.ProgramState] = []

    @pt.function
    def program(s: pt.ProgramState) -> None:
        s += "one" + pt.gen("x")
        kept.append(s)

    program.compile()
    with pytest.raises(pt.ProgramError, match="compiled, not run"):
        kept[0]["x"]
    with pytest.raises(pt.ProgramError, match="has ended"):
        kept[0].__iadd__("two")


# -- async programs ----------------------------------------------------------------------------------------------------


@pt.function
async def river(s: pt.ProgramState, country: str, together: bool = False) -> None:
    s += f"The capital of {country} is " + pt.gen("city")

    async def ask(branch: pt.ProgramState, what: str) -> str:
        with branch.user():
            branch += what + pt.gen("x")
            await asyncio.sleep(0)
            return str(await branch.get("x"))

    if together:
        await s.fork(3).map(ask, ["a", "b", "c"])
    await s.ready()
    s += "Known." + pt.gen("more")
    await s.get("city")
    s += "never"


def texts_of(compiled: pt.CompiledProgram) -> list[str]:
    return [node.text for node in compiled.nodes if isinstance(node, Text)]


def test_async_programs() -> None:
    """They are followed to their first value; the branches of a map each to their own."""
    assert texts_of(river.compile("Italy")) == ["The capital of Italy is ", "Known."]
    assert texts_of(river.compile("Italy", together=True))[1:] == ["USER: ", "a", "USER: ", "b", "USER: ", "c"]


def test_async_programs_inside_of_an_event_loop() -> None:
    """As in a notebook, where a loop runs already."""

    async def compile_here() -> pt.CompiledProgram:
        return river.compile("Peru")

    assert texts_of(asyncio.run(compile_here()))[0] == "The capital of Peru is "


def test_a_task_group_that_stops() -> None:
    """The group's exception, which holds the signal, ends the program as the signal does."""

    @pt.function
    async def program(s: pt.ProgramState) -> None:
        s += "one" + pt.gen("x")
        async with asyncio.TaskGroup() as group:
            group.create_task(s.get("x"))
        s += "never"

    assert texts_of(program.compile()) == ["one"]


def test_tasks_left_alone_are_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """A task that stopped and that nobody awaits is not reported; the program's own flow ends at its next append."""

    @pt.function
    async def program(s: pt.ProgramState) -> None:
        s += "one" + pt.gen("x")
        task = asyncio.create_task(s.get("x"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task
        s += "two"

    assert texts_of(program.compile()) == ["one"]
    assert capfd.readouterr().err == ""


def test_interrupts_come_out() -> None:
    """Ctrl-C and sys.exit are no stops."""

    @pt.function
    def program(s: pt.ProgramState, kind: type[BaseException]) -> None:
        s += "one" + pt.gen("x")
        raise kind

    for kind in (KeyboardInterrupt, SystemExit):
        with pytest.raises(kind):
            program.compile(kind)


def test_the_signal_is_no_exception() -> None:
    """`except Exception` cannot take it."""
    assert not issubclass(ValueUnknown, Exception)
