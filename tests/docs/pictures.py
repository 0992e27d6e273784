"""Makes the pictures of README.md: `make pictures`.

A demo with two workers gets requests of all kinds for a while; then Chromium photographs the status page, and tmux the
screen of `mcproxy top`, which Chromium draws.
"""

from __future__ import annotations

import contextlib
import html
import itertools
import json
import re
import shlex
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.support.chromium import Chromium

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
COLUMNS, LINES = 110, 32
_SETTLED = 100.0  # seconds of load, for the charts
_SESSION = "mcproxy-picture"
_TARGETS = (
    *("/clusters/east/api/v1/namespaces/shop/pods", "/clusters/west/api/v1/nodes", "/clusters/east/version"),
    *("/clusters/west/api/v1/pods?limit=20", "/clusters/west/apis/apps/v1/deployments", "/clusters/nowhere/api"),
)
_COLORS = ("#20242c", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d7dae0")
_SEQUENCE = re.compile(r"\x1b\[([\d;]*)m")


class Load(contextlib.AbstractContextManager["Load"]):
    """Clients that ask in bursts, so that the charts have a shape."""

    def __init__(self, address: str, ca: Path) -> None:
        self._address = address
        self._context = ssl.create_default_context(cafile=ca)
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(3)]

    def _ask(self, number: int) -> None:
        for count in itertools.count():
            if self._stopping.is_set():
                return
            target = _TARGETS[(count + number) % len(_TARGETS)]
            with contextlib.suppress(urllib.error.HTTPError):
                urllib.request.urlopen(self._address + target, context=self._context, timeout=10).read()
            time.sleep(0.005 + 0.03 * abs((time.monotonic() / 12 + number) % 2 - 1))

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def demo(directory: Path) -> Iterator[str]:
    """Run a demo in `directory`, and give the address of its proxy."""
    command = [sys.executable, "-m", "mcproxy", "demo", "--workers", "2", "--dir", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        printed = list(itertools.takewhile(lambda line: line != "ready\n", process.stdout))
        yield printed[0].split()[-1]
    finally:
        process.terminate()
        process.wait(30)


def screen(command: str, seconds: float) -> str:
    """Return the screen of a terminal program after some seconds, with its colours as escape sequences."""
    tmux = ["tmux", "-L", _SESSION]
    subprocess.run(
        [*tmux, "new-session", "-d", "-s", _SESSION, "-x", str(COLUMNS), "-y", str(LINES), command],
        check=True,
    )
    try:
        time.sleep(seconds)
        shown = subprocess.run(
            [*tmux, "capture-pane", "-e", "-p", "-t", _SESSION], check=True, capture_output=True, text=True
        )
        return shown.stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


def page_of_screen(text: str) -> str:
    """Return an HTML page that looks like the terminal: the colours, bold, dim and reversed text of ECMA-48."""
    parts: list[str] = []
    codes: set[int] = set()
    for number, piece in enumerate(_SEQUENCE.split(text.rstrip("\n"))):
        if number % 2:
            for code in (int(each or 0) for each in piece.split(";")):
                if code in (0, 39):
                    codes = {each for each in codes if code and not 30 <= each <= 97}
                elif code == 22:
                    codes -= {1, 2}
                elif code == 27:
                    codes.discard(7)
                else:
                    codes.add(code)
        elif piece:
            parts.append(f'<span style="{_style(codes)}">{html.escape(piece)}</span>')
    return (
        f'<!doctype html><meta charset="utf-8"><body style="margin:0;background:{_COLORS[0]};color:{_COLORS[7]}">'
        f'<pre style="margin:16px;font:14px/1.35 monospace">{"".join(parts)}</pre>'
    )


def _style(codes: set[int]) -> str:
    colour, background = _COLORS[7], "transparent"
    for code in codes:
        if 30 <= code <= 37:
            colour = _COLORS[code - 30] if code != 30 else "#5c6370"
        elif 90 <= code <= 97:
            colour = _COLORS[code - 90] if code != 90 else "#7f848e"
    if 7 in codes:
        colour, background = _COLORS[0], colour
    weight = "bold" if 1 in codes else "normal"
    return f"color:{colour};background:{background};font-weight:{weight};opacity:{0.6 if 2 in codes else 1}"


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mcproxy-pictures-") as temporary:
        directory = Path(temporary) / "demo"
        with demo(directory) as address, Load(address, directory / "ca.crt"):
            file = shlex.quote(str(directory / "mcproxy.yaml"))
            time.sleep(_SETTLED)
            shown = screen(f"{shlex.quote(sys.executable)} -m mcproxy top -c {file}", 6)
            ports = json.loads((directory / ".mcproxy-demo").read_text())["ports"]
            with Chromium(Path(temporary) / "profile") as browser:
                for scheme in ("light", "dark"):
                    browser.prefer(scheme)
                    browser.resize(1100, 1250)
                    browser.open(f"http://127.0.0.1:{ports['admin']}/")
                    browser.screenshot(PICTURES / f"status-page-{scheme}.png", whole=False)
                (Path(temporary) / "top.html").write_text(page_of_screen(shown))
                browser.resize(960, 100)
                browser.open(f"file://{temporary}/top.html")
                browser.screenshot(PICTURES / "top.png")


if __name__ == "__main__":
    main()
