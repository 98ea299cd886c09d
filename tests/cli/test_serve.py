"""`palmette serve`: its options, and the server that it starts in processes of its own."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.cli.conftest import Run
from tests.engine_processes import children_of, wait_until

from palmette.bench import fake_model
from palmette.cli.serve_options import help_lines
from palmette.runtime.setting_table import SELDOM, settings

SECRET = "xylophone"
KEY = "open-sesame"


# -- options --------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_help_is_short(palmette: Run) -> None:
    """--help is grouped and fits a screen: a line for each everyday option, the others one option away."""
    result = palmette("serve", "--help")
    lines = plain(result.stdout).splitlines()
    assert result.exit_code == 0
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 95
    assert {"Model", "Memory and batching", "Scheduling", "Grammars", "Server", "Security", "Logging"} <= set(lines)
    assert "--help-all" in result.stdout


def test_every_setting_has_a_flag(palmette: Run) -> None:
    """--help-all has a line for every setting; --help leaves out those that few ever touch, and nothing else."""
    everything = plain(palmette("serve", "--help-all").stdout)
    everyday = plain(palmette("serve", "--help").stdout)

    def shown(text: str) -> set[str]:
        return {match.replace("-", "_") for match in re.findall(r"^  --(?:\[no-\])?([a-z-]+)", text, re.MULTILINE)}

    names = settings().keys() - {"model"}
    assert names <= shown(everything)
    assert names - shown(everyday) == SELDOM
    assert list(help_lines(everything=True))


def test_every_flag_is_read(palmette: Run) -> None:
    """Each setting's flag is taken by the command, and shown as the one who chose it."""
    for setting in settings().values():
        value = {
            "switch": [],
            "whole": ["7"],
            "bytes": ["7MiB"],
            "seconds": ["7"],
            "fraction": ["0.5"],
            "choice": [setting.choices[-1]] if setting.choices else [],
            "list": ["https://a.example"],
            "text": [__file__ if setting.name.startswith("ssl") else "some-text"],
        }[setting.kind]
        words = [*value] if setting.name == "model" else [setting.flag, *value]
        if setting.name in ("ssl_keyfile", "ssl_ca_certs", "ssl_keyfile_password", "ssl_certfile"):
            words += ["--ssl-certfile", __file__] if setting.name != "ssl_certfile" else ["--ssl-keyfile", __file__]
            words += ["--ssl-keyfile", __file__] if setting.name in ("ssl_ca_certs", "ssl_keyfile_password") else []
        result = palmette("serve", *words, "--print-config")
        assert result.exit_code == 0, (setting.name, result.output)
        (line,) = [line for line in result.stdout.splitlines() if re.match(rf"(# )?{setting.name} =", line)]
        assert line.endswith(f"# {setting.flag}")


def test_precedence_on_the_command_line(palmette: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag wins over a variable, a variable over the file of --config or PALMETTE_CONFIG; a key is never printed."""
    file = tmp_path / "settings.toml"
    file.write_text(f"port = 1\nhost = 'localhost'\nseed = 1\napi_key = '{KEY}'\n")
    monkeypatch.setenv("PALMETTE_CONFIG", str(file))
    monkeypatch.setenv("PALMETTE_PORT", "2")
    monkeypatch.setenv("PALMETTE_SEED", "2")
    printed = palmette("serve", "--seed", "3", "--print-config").stdout
    assert re.search(r"^seed = 3 +# --seed$", printed, re.MULTILINE)
    assert re.search(r"^port = 2 +# PALMETTE_PORT$", printed, re.MULTILINE)
    assert re.search(r'^host = "localhost" +# host in ', printed, re.MULTILINE)
    assert KEY not in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "abc"], "--port must be a whole number, not 'abc'"),
        (["--port", "70000"], "--port must be a whole number from 0 (any free port) to 65535, not 70000"),
        (["--policy", "lmp"], "--policy must be one of fcfs, lpm"),
        (["--memory-bytes", "1GB"], "--memory-bytes must be a number of bytes such as 1073741824 or 1GiB, not '1GB'"),
        (["--chunk-size", "0"], "--chunk-size must be a whole number of at least 1, not 0"),
        (["--ssl-keyfile", "/nowhere"], "--ssl-keyfile must be a file, and there is none at '/nowhere'"),
        (["--config", "/nowhere.toml"], "there is no settings file '/nowhere.toml'"),
        (["--api-key", ""], "--api-key must not be empty"),
        (["--cors-origins", "a.example"], "--cors-origins must be '*' or origins such as"),
        (["/nowhere/model"], "/nowhere/model"),
        (["some/model", "--offline"], "some/model"),
    ],
)
def test_what_cannot_be_used(palmette: Run, words: list[str], said: str) -> None:
    """What cannot be used is one line that says why, and a hint; exit code 2, before anything is started."""
    result = palmette("serve", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) <= 2


def test_unknown_option(palmette: Run) -> None:
    """A misspelt option is met with those that are near."""
    result = palmette("serve", "--prot", "1")
    assert result.exit_code == 2
    assert "--port" in result.stderr


def test_what_may_not_be_meant(palmette: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server open to the network, a key that others can read, and a file that is not read are told of."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "palmette.toml").write_text("port = 1\n")
    result = palmette("serve", "/nowhere/model", "--host", "0.0.0.0")
    assert "no API key is asked for" in result.stderr
    assert "--config palmette.toml reads it" in result.stderr
    result = palmette("serve", "/nowhere/model", "--host", "0.0.0.0", "--api-key", KEY)
    assert "PALMETTE_API_KEY hides it" in result.stderr
    assert "no API key is asked for" not in result.stderr
    assert KEY not in result.output


# -- a real server --------------------------------------------------------------------------------------------------


@dataclass
class Served:
    """A `palmette serve` that runs."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""

    @property
    def written(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str, timeout_s: float = 300.0) -> None:
        """Wait until it has written `text`."""
        until = time.monotonic() + timeout_s
        while text not in self.written:
            assert self.process.poll() is None, self.written
            assert time.monotonic() < until, self.written
            time.sleep(0.05)

    def end(self, number: signal.Signals, timeout_s: float = 300.0) -> int:
        """Send a signal and wait for the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)


@contextlib.contextmanager
def serving(folder: Path, log: Path, *words: str, **environment: str) -> Iterator[Served]:
    """A server of the model in `folder`, at a free port; killed at the end where it still runs."""
    command = [sys.executable, "-m", "palmette", "serve", str(folder), "--port", "0", "--max-total-tokens", "8000"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            start_new_session=True,
        )
    served = Served(process, log)
    try:
        served.wait_for("every endpoint")
        served.url = re.findall(r"(https?://\S+)/docs", served.written)[0]
        yield served
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_serves_and_logs_no_text(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Every kind of request is answered and logged with its counts; no text of any is in any process' log.

    After SIGTERM a stream that is open goes on to its end, new connections are refused, and the exit code is 0.
    """
    words = ("--log-format", "json", "--log-level", "debug", "--status-interval-s", "0.2", "--drain-timeout-s", "600")
    with (
        serving(tiny_model_folder, tmp_path / "log", *words) as served,
        httpx.Client(base_url=served.url, timeout=300) as client,
    ):
        chat = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 8, "ignore_eos": True}
        assert client.post("/v1/chat/completions", json=chat, timeout=300).status_code == 200
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": SECRET}}}
        assert client.post("/v1/chat/completions", json={**chat, "response_format": schema}).status_code == 400
        assert client.post("/v1/chat/completions", json={**chat, SECRET: 1, "temperature": SECRET}).status_code == 400
        assert client.post("/v1/completions", json={"prompt": SECRET, "max_tokens": -1}).status_code == 400
        regex = {"prompt": SECRET, "regex": f"{SECRET}(", "max_tokens": 4}
        assert client.post("/v1/completions", json=regex).status_code == 400
        assert client.post("/v1/chat/completions", content=SECRET).status_code in (400, 415)
        assert client.get(f"/{SECRET}?{SECRET}={SECRET}").status_code == 404
        too_long = {"prompt": SECRET * 20_000, "max_tokens": 4}
        assert client.post("/v1/completions", json=too_long, timeout=300).status_code == 400
        assert client.get("/").status_code == 200
        body = {"prompt": SECRET, "max_tokens": 60, "stream": True, "ignore_eos": True, "temperature": 0}
        with client.stream("POST", "/v1/completions", json=body, timeout=300) as answer:
            lines = answer.iter_lines()
            next(lines)
            served.process.send_signal(signal.SIGTERM)
            assert "data: [DONE]" in list(lines)
        assert served.process.wait(300) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{served.url}/health", timeout=60)
        written = served.written
    assert SECRET not in written
    assert '"route": "/v1/chat/completions", "status": 200' in written
    assert '"output_tokens": 8' in written
    assert '"route": "unknown", "status": 404' in written


def test_key_and_settings_reach_the_server(tiny_model_folder: Path, tmp_path: Path) -> None:
    """A key of the environment is asked for, and stands neither in the log nor on a command line."""
    with serving(tiny_model_folder, tmp_path / "log", "--model-name", "pear", PALMETTE_API_KEY=KEY) as served:
        assert httpx.get(f"{served.url}/v1/models", timeout=60).status_code == 401
        answer = httpx.get(f"{served.url}/v1/models", headers={"authorization": f"Bearer {KEY}"}, timeout=60)
        assert answer.json()["data"][0]["id"] == "pear"
        commands = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=False).stdout
        assert KEY not in commands
        assert served.end(signal.SIGINT) == 0
        assert KEY not in served.written


def test_a_second_interrupt_does_not_wait(tiny_model_folder: Path, tmp_path: Path) -> None:
    """The second Ctrl-C ends what is open at once, with the exit code of an interrupt."""
    with serving(tiny_model_folder, tmp_path / "log", "--drain-timeout-s", "600") as served:
        address = httpx.URL(served.url)
        with socket.create_connection((address.host, address.port or 0)) as open_request:
            body = b'{"prompt": "a", "max_tokens": 400, "n": 64, "ignore_eos": true}'
            head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            head += f"content-length: {len(body)}"
            open_request.sendall(head.encode() + b"\r\n\r\n" + body)
            until = time.monotonic() + 60
            while httpx.get(f"{served.url}/page/state", timeout=60).json()["stats"]["running"] == 0:
                assert time.monotonic() < until
            served.process.send_signal(signal.SIGINT)
            served.wait_for("Ctrl-C again does not wait")
            assert not select.select([open_request], [], [], 0)[0]
            assert served.end(signal.SIGINT) == 130


def test_a_dead_process_ends_it(tiny_model_folder: Path, tmp_path: Path) -> None:
    """When the scheduler is killed, the server ends with exit code 1 and says which process died, and how."""
    with serving(tiny_model_folder, tmp_path / "log") as served:
        children = children_of(served.process.pid)
        (pid,) = [pid for pid, command in children.items() if "scheduler_process" in command]
        os.kill(pid, signal.SIGKILL)
        assert served.process.wait(60) == 1
        assert "error: the scheduler process ended by SIGKILL" in served.written
        assert "Traceback" not in served.written


def test_port_in_use(tiny_model_folder: Path, tmp_path: Path) -> None:
    """A port that is taken is said to be, in a line with what to do; exit code 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = subprocess.run(
            [sys.executable, "-m", "palmette", "serve", str(tiny_model_folder), "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert answer.returncode == 2
    assert f"port={port}: Address already in use" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_terminated_while_loading(tmp_path: Path) -> None:
    """SIGTERM before the model is ready ends it and its processes; exit code 143."""
    # a model that never loads: its configuration is a pipe that nobody writes to
    folder = fake_model.write_folder(tmp_path / "model")
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    process = subprocess.Popen(
        [sys.executable, "-m", "palmette", "serve", str(folder), "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(children_of(process.pid)) == 3, "its processes")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (143, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()
