"""Chromium without a screen, driven by its DevTools protocol over two pipes: no port, no further program.

Protocol: https://chromedevtools.github.io/devtools-protocol/; `--remote-debugging-pipe` reads JSON that ends with a NUL
byte from descriptor 3, and writes answers and events to descriptor 4.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

PATIENCE = 120.0
"""Seconds for a browser to start, or a page to get somewhere, on a busy machine."""

_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars"),
    # Nothing of it may leave the machine, whatever the browser fetches for itself.
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)


class Chromium:
    """A browser with one page; use it in a `with` statement."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        if program is None:
            pytest.fail("this test needs Chromium: .ci/tools chromium")
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        more = [f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        script = f'exec 3<&{read_commands} 4>&{write_answers}; exec "$@"'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, "bash", program, *_OPTIONS, *more, "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(read_commands, write_answers),
            start_new_session=True,  # to end its helpers with it
        )
        os.close(read_commands)
        os.close(write_answers)
        self._numbers = itertools.count(1)
        self._received = b""
        self.events: list[dict[str, Any]] = []
        self._session = ""
        self._waited_from = 0
        pages = [each for each in self.ask("Target.getTargets")["targetInfos"] if each["type"] == "page"]
        attached = self.ask("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come meanwhile are kept in `events`."""
        number = next(self._numbers)
        command: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._received:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise AssertionError("the browser does not answer")
            data = os.read(self._answers, 1 << 20)
            assert data, "the browser has ended"
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def open(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self._waited_from = len(self.events)
        result = self.ask("Page.navigate", url=url)
        assert not result.get("errorText"), (url, result)
        self.wait_for_event("Page.loadEventFired")

    def wait_for_event(self, method: str) -> None:
        """Wait for an event that has come since this was last called, or comes."""
        while not any(event["method"] == method for event in self.events[self._waited_from :]):
            self.events.append(self._next())
        self._waited_from = len(self.events)

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page; a promise is awaited."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression in the page is true, and return its value."""
        until = time.monotonic() + PATIENCE
        while not (value := self.run(expression)):
            assert time.monotonic() < until, expression
            time.sleep(0.02)
        return value

    def resize(self, width: int, height: int = 900) -> None:
        """Show the page as on a screen of this size, in CSS pixels; up to 600 as a telephone does."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width <= 600
        )

    def prefer(self, scheme: str) -> None:
        """Let the user prefer "light" or "dark"."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def without_script(self) -> None:
        """Run no script of a page that is opened from now on."""
        self.ask("Emulation.setScriptExecutionDisabled", value=True)

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Write a picture of the page, the whole of it or what the screen shows."""
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(data))

    @property
    def complaints(self) -> list[str]:
        """What the browser had to say of the page: violated policies, failed requests, uncaught exceptions."""
        found = []
        for event in self.events:
            if event["method"] == "Log.entryAdded":
                found.append(str(event["params"]["entry"]["text"]))
            elif event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
        return found

    @property
    def requested(self) -> list[str]:
        """The addresses of all requests."""
        return [
            str(event["params"]["request"]["url"])
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
