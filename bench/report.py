"""What a run found: sections with a table, comparisons and targets, as text for a terminal and as Markdown.

The targets themselves are given by the measurement that they belong to; here they are compared and shown.
"""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.python import Python
from bench.stats import paired_ratios, spread
from bench.subjects import CACHE

_LIBRARIES = (
    "import OpenSSL, twisted; print(f'Twisted {twisted.__version__}, pyOpenSSL {OpenSSL.version.__version__} "
    "({OpenSSL.SSL.OpenSSL_version(OpenSSL.SSL.OPENSSL_VERSION).decode()})')"
)
NOISE = (
    "Request rates from a shared or virtual machine are worth little: nginx itself was seen between 24,000 and "
    "52,000 requests/s on one machine within a day. Processor time per request is steadier, and is what targets are "
    "set for; it is compared only by ratios taken within one round, as the median of the rounds with the smallest and "
    "the largest beside it. A difference under 20 % between two request rates is no result. On a machine of two cores "
    "the load and the upstream share the second one, so a fast proxy may be waiting for them (a core that is not busy "
    "shows it); then its rate is a lower bound."
)


@dataclass(frozen=True, slots=True)
class Target:
    """One figure that mcproxy must reach, with what was measured."""

    what: str
    wanted: str
    measured: str
    met: bool

    def show(self) -> str:
        return "pass" if self.met else "FAIL"


@dataclass(slots=True)
class Section:
    """One measurement: rows of `columns` (the first cell names the subject), comparisons in words, targets."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    comparisons: list[str] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    figures: dict[str, Sequence[float]] = field(default_factory=dict)
    """Values that are compared with those of the same section by another build (`bench.builds`)."""


def named(target: Target, what: str) -> Target:
    """Return a target that says what it was measured with."""
    return replace(target, what=f"{target.what} ({what})")


def limit(
    what: str, values: Sequence[float], *, unit: str = "", digits: int = 2, at_least: float = 0.0, at_most: float = 0.0
) -> Target:
    """Compare the median of `values` with one of the two limits; without values the target is missed."""
    suffix = f" {unit}" if unit else ""
    wanted = f"at least {at_least:g}{suffix}" if at_least else f"at most {at_most:g}{suffix}"
    if not values:
        return Target(what, wanted, "not measured", met=False)
    found = spread(values)
    met = found.median >= at_least if at_least else found.median <= at_most
    return Target(what, wanted, found.show(digits) + suffix, met)


def comparison(what: str, rounds: Sequence[Mapping[str, float]], over: str, under: str) -> str | None:
    """Return a line with the paired ratio, None when no round has both."""
    ratios = paired_ratios(rounds, over, under)
    return f"{what}, {over} / {under}: {spread(ratios).show()} of {len(ratios)} rounds" if ratios else None


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are aligned, so that it reads well in a terminal too."""
    lines = [list(columns), *[list(row) for row in rows]]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    shown = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    shown.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(shown) + "\n"


def show_section(section: Section) -> str:
    """Return a section as Markdown."""
    parts = [f"## {section.title}\n", table(section.columns, section.rows)]
    if section.comparisons:
        parts.append("".join(f"- {line}\n" for line in section.comparisons))
    return "\n".join(parts)


def show_targets(sections: Sequence[Section]) -> str:
    """Return the table of all targets, what was measured beside what is wanted."""
    rows = [(t.what, t.wanted, t.measured, t.show()) for section in sections for t in section.targets]
    return table(["target", "wanted", "measured: median [spread]", "result"], rows)


def document(
    sections: Sequence[Section], command: str, when: str, facts: Mapping[str, str], warnings: Sequence[str] = ()
) -> str:
    """Return RESULTS.md; it holds for the machine that `facts` describes and for no other."""
    parts = [
        "# Results of the benchmarks\n",
        f"Written by `{command}` (also: `make bench`) on {when}.\n",
        "".join(f"- {name}: {value}\n" for name, value in facts.items()),
        *(f"**Warning: {warning}**\n" for warning in warnings),
        "TLS 1.3 with one cipher and verified certificates on both sides of every proxy, one process each.\n",
        "## Targets\n",
        show_targets(sections),
        *[show_section(section) for section in sections],
        "## How far to trust them\n",
        NOISE + "\n",
    ]
    return "\n".join(parts)


def machine(python: Python) -> dict[str, str]:
    """Return what the figures depend on: processor, cores, kernel and versions, those that mcproxy has in `python`."""
    model = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    cores = len(re.findall(r"^processor\s*:", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    nginx = _output("nginx", "-V")
    running = re.search(r"running with (OpenSSL [\w.]+)", nginx) or re.search(r"built with (OpenSSL [\w.]+)", nginx)
    version = re.search(r"nginx/[\w.]+", nginx)
    libraries = _output(str(python.program), "-c", _LIBRARIES).strip()
    go = _output(str(built[0]), "version") if (built := sorted(CACHE.glob("go/bin/go"))) else _output("go", "version")
    wrk = re.search(r"wrk \S+", _output("wrk", "-v"))
    return {
        "processor": f"{model[1] if model else platform.machine()}, {cores} cores",
        "kernel": platform.release(),
        "Python of mcproxy and twisted.web": f"{python.show()}, {libraries}",
        "Go": go.strip().removeprefix("go version ") or "none",
        "nginx": f"{version[0] if version else '?'} ({running[1] if running else '?'}), {wrk[0] if wrk else 'wrk'}",
    }


def _output(*argv: str) -> str:
    """Return what a command prints, "" when there is no such program."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout + done.stderr
