"""The supervisor starts processes, hears them, keeps the ends of their logs, and ends them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from palmette.constrained.errors import GrammarBackendError
from palmette.runtime.config import EngineConfig
from palmette.runtime.errors import EngineError, ModelLoadError
from palmette.runtime.models import UnsupportedModelError
from palmette.runtime.processes.process_errors import error_of
from palmette.runtime.processes.process_messages import ChildSettings, FromChild, Progress, Ready, Refused, Stop
from palmette.runtime.processes.supervisor import LOG_LINES, ChildEnd, ChildSpec, Supervisor
from palmette.runtime.server_settings import ServerSettings

LIMIT_S = 60.0

# What a process of the test does, on top of what each process of an engine does
WORK = """
import sys, threading, time
from palmette.runtime.processes.child import run_child
from palmette.runtime.errors import ModelLoadError
from palmette.runtime.processes.process_messages import Ready

def work(child):
    print("a library prints")
    stopped = threading.Event()
    child.on_stop(lambda stop: stopped.set())
    {body}

if __name__ == "__main__":
    run_child({name!r}, work)
"""


class Family:
    """A supervisor of test processes, and all that it told."""

    def __init__(self, tmp_path: Path, bodies: dict[str, str], api_key: str | None = None) -> None:
        self.reports: list[tuple[str, FromChild]] = []
        self.ends: dict[str, ChildEnd] = {}
        self.log: list[str] = []
        self._changed = threading.Condition()
        told = ChildSettings(
            parent_pid=os.getpid(), folder=str(tmp_path), engine=EngineConfig(), server=ServerSettings(api_key=api_key)
        )
        specs = []
        for name, body in bodies.items():
            (tmp_path / f"child_{name}.py").write_text(WORK.format(body=body, name=name))
            specs.append(ChildSpec(name, f"child_{name}", told))
        self.supervisor = Supervisor(specs, on_report=self._report, on_end=self._end, on_log=self.log.append)
        self.supervisor.start()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, LIMIT_S), (self.reports, self.ends, self.log)

    def wait_until_ready(self, count: int) -> None:
        self.wait_for(lambda: sum(isinstance(report, Ready) for _, report in self.reports) == count)

    def _report(self, name: str, report: FromChild) -> None:
        with self._changed:
            self.reports.append((name, report))
            self._changed.notify_all()

    def _end(self, end: ChildEnd) -> None:
        with self._changed:
            assert end.name not in self.ends, "ended twice"
            self.ends[end.name] = end
            self._changed.notify_all()


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes find the modules that the test writes."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


READY = "child.report(Ready()); stopped.wait()"


def test_processes_report_and_end_when_they_are_asked_to(tmp_path: Path) -> None:
    """What they print is their log; the one that is named first ends first."""
    later = "child.report(Ready()); stopped.wait(); open(child.settings.folder + '/order', 'a').write({!r})"
    family = Family(
        tmp_path, {"scheduler": later.format("b"), "server": "child.report_progress('x');" + later.format("a")}
    )
    family.wait_until_ready(2)
    assert ("server", Progress("x")) in family.reports
    family.supervisor.end(Stop(5.0), "server")
    assert family.supervisor.wait(LIMIT_S)
    assert {end.code for end in family.ends.values()} == {0}
    assert (tmp_path / "order").read_text() == "ab"
    assert family.log.count("a library prints") == 2
    family.supervisor.end(Stop(), "server")  # nothing is left to end
    family.supervisor.kill()


def test_a_death_is_told_with_the_last_lines(tmp_path: Path) -> None:
    """Of a long log, also where the last line is not ended."""
    body = f"[print('line', i) for i in range({LOG_LINES * 3})]; sys.stderr.write('no end'); child.report(Ready());"
    body += "time.sleep(600)"
    family = Family(tmp_path, {"scheduler": body})
    family.wait_until_ready(1)
    os.kill(family.supervisor.pids["scheduler"], signal.SIGKILL)
    assert family.supervisor.wait(LIMIT_S)
    end = family.ends["scheduler"]
    assert end.code == -signal.SIGKILL
    assert end.last_lines == (*[f"line {i}" for i in range(LOG_LINES * 2 + 1, LOG_LINES * 3)], "no end")
    assert str(end).startswith("the scheduler process ended by SIGKILL; its last lines of log:\n    line ")


def test_an_error_in_loading_is_reported_as_what_it_is(tmp_path: Path) -> None:
    """An error of Palmette's by its class; any other with its traceback in the log."""
    family = Family(
        tmp_path,
        {"scheduler": "raise ModelLoadError('no tensor x')", "server": "raise KeyError('y')", "detokenizer": READY},
    )
    family.wait_for(lambda: {"scheduler", "server"} <= family.ends.keys())
    refusals = {name: report for name, report in family.reports if isinstance(report, Refused)}
    assert refusals["scheduler"] == Refused("palmette.runtime.errors", "ModelLoadError", "no tensor x")
    assert refusals["server"].kind == "KeyError"
    assert {family.ends["scheduler"].code, family.ends["server"].code} == {1}
    assert any("KeyError" in line for line in family.ends["server"].last_lines)
    family.supervisor.kill()
    assert family.supervisor.wait(LIMIT_S)


def test_a_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """After its time, and one that is stopped and cannot hear anything too."""
    family = Family(tmp_path, {"server": "child.report(Ready()); time.sleep(600)", "scheduler": READY})
    family.wait_until_ready(2)
    os.kill(family.supervisor.pids["server"], signal.SIGSTOP)
    family.supervisor.end(Stop(0.1), "server")
    assert family.supervisor.wait(LIMIT_S)
    assert family.ends["server"].code == -signal.SIGKILL
    assert family.ends["scheduler"].code == 0


def test_interrupts_and_sigterm_are_not_the_workers_to_answer(tmp_path: Path) -> None:
    """A scheduler ends when the parent says so, and no sooner."""
    family = Family(tmp_path, {"scheduler": READY})
    family.wait_until_ready(1)
    pid = family.supervisor.pids["scheduler"]
    assert os.getsid(pid) == pid, "an interrupt at the terminal would reach it"
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    time.sleep(0.2)
    assert not family.ends
    family.supervisor.end(Stop(), "scheduler")
    assert family.supervisor.wait(LIMIT_S)
    assert family.ends["scheduler"].code == 0
    assert "Traceback" not in "\n".join(family.log)


def test_settings_do_not_stand_on_the_command_line(tmp_path: Path) -> None:
    """Nor in the environment: other users can read the one, and children the other."""
    secret = "sk-very-secret"
    body = f"assert child.settings.server.api_key == {secret!r}; " + READY
    family = Family(tmp_path, {"scheduler": body}, api_key=secret)
    family.wait_until_ready(1)
    for file in ("cmdline", "environ"):
        assert secret.encode() not in Path(f"/proc/{family.supervisor.pids['scheduler']}/{file}").read_bytes()
    family.supervisor.kill()
    assert family.supervisor.wait(LIMIT_S)


def test_a_thread_that_starts_processes_may_end(tmp_path: Path) -> None:
    """On Linux a process may be tied to the thread that started it, which is the supervisor's own."""
    families: list[Family] = []
    thread = threading.Thread(target=lambda: families.append(Family(tmp_path, {"scheduler": READY})))
    thread.start()
    thread.join()
    families[0].wait_until_ready(1)
    time.sleep(0.3)
    assert not families[0].ends
    families[0].supervisor.kill()
    assert families[0].supervisor.wait(LIMIT_S)


def test_a_file_of_the_current_folder_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue.py beside the user's data must not break an engine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    (tmp_path / "modules").mkdir()
    (tmp_path / "queue.py").write_text("raise SystemExit('the wrong queue')")
    (tmp_path / "msgspec.py").write_text("raise SystemExit('the wrong msgspec')")
    family = Family(tmp_path / "modules", {"scheduler": "import queue;" + READY})
    family.wait_until_ready(1)
    family.supervisor.kill()
    assert family.supervisor.wait(LIMIT_S)


@pytest.mark.parametrize("error", [ModelLoadError("m"), UnsupportedModelError("u"), GrammarBackendError("g")])
def test_an_error_of_a_process_is_raised_as_the_same_class(error: Exception) -> None:
    """With the same text; what is not Palmette's becomes an EngineError that names it."""
    kind = type(error)
    found = error_of("scheduler", Refused(kind.__module__, kind.__qualname__, str(error)))
    assert type(found) is kind
    assert str(found) == str(error)


@pytest.mark.parametrize(
    ("module", "kind"), [("builtins", "KeyError"), ("os", "system"), ("palmette.runtime", "launch")]
)
def test_no_other_name_is_looked_up(module: str, kind: str) -> None:
    """A report names classes of errors and can call nothing else."""
    found = error_of("server", Refused(module, kind, "text"))
    assert type(found) is EngineError
    assert str(found) == f"the server process could not start: {kind}: text"


def test_settings_survive_their_way() -> None:
    """Every field of both settings, as JSON."""
    told = ChildSettings(
        parent_pid=1,
        folder="/tmp/x",
        engine=EngineConfig(model="m", seed=3, policy="fcfs"),
        server=ServerSettings(port=8, api_key="k", cors_origins=("https://a.example",)),
    )
    assert msgspec.json.decode(msgspec.json.encode(told), type=ChildSettings) == told
