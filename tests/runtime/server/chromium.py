"""Headless Chromium for tests of web pages, driven through its debugging pipe: no driver and no package needed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")

# Chromium reads commands from descriptor 3 and writes to 4.
_LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def find_chromium() -> str | None:
    """The browser's program, or None where there is none."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for path in map(shutil.which, PROGRAMS) if path), None)


class PageError(AssertionError):
    """A command that the browser refused, or a wait that was in vain."""


class Chromium:
    """One page in one browser. A context manager.

    Attributes:
        problems: what the page's console and its security policy complained of, and failed loads.
    """

    def __init__(self, program: str, profile: Path) -> None:
        commands_in, commands_out = os.pipe()
        answers_in, answers_out = os.pipe()
        # out of the way of 3 and 4, which one would else be copied over the other
        given = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 50) for descriptor in (commands_in, answers_out)]
        os.close(commands_in)
        os.close(answers_out)
        command = [
            *(sys.executable, "-c", _LAUNCH, *map(str, given), program),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *(f"--user-data-dir={profile}", "--remote-debugging-pipe", "--window-size=1400,1000", "about:blank"),
        ]
        self._process = subprocess.Popen(
            command,
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for descriptor in given:
            os.close(descriptor)
        self._out, self._in = commands_out, answers_in
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        pages = self._call("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        os.close(self._out)
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        self._call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, a promise's once it is settled."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise PageError(f"{script}: {details.get('exception', {}).get('description', details['text'])}")
        return answer["result"].get("value")

    def wait(self, condition: str, timeout_s: float = 60.0) -> None:
        """Wait until a JavaScript expression is true."""
        until = time.monotonic() + timeout_s
        while not self.run(condition):
            if time.monotonic() > until:
                raise PageError(f"{condition} did not come true; the page says {self.run('document.body.innerText')!r}")
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        """The text of an element."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).textContent"))

    def hover(self, selector: str) -> None:
        """Move the mouse to the middle of an element."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.run(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({box})")
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def look(self, width: int = 1400, height: int = 1000, *, dark: bool = False) -> bytes:
        """A picture of the page, as PNG."""
        self.resize(width, height)
        self.prefer(dark=dark)
        time.sleep(0.6)  # transitions
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def resize(self, width: int, height: int) -> None:
        """Give the page another size."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefer(self, *, dark: bool) -> None:
        """Say which colours the person likes."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                if "error" in message:
                    raise PageError(f"{method}: {message['error']['message']}")
                result: dict[str, Any] = message["result"]
                return result
            self._take_event(message)

    def _receive(self, timeout_s: float = 90.0) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], timeout_s)[0]:
                raise PageError(f"the browser said nothing for {timeout_s:g} s")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise PageError("the browser ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _take_event(self, message: dict[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
