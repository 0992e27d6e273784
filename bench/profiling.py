"""`bench profile`: where a Python proxy spends its time under the load of `bench cost` at 16 connections.

cProfile needs nothing but slows Python code down about twofold, calls into C much less: read it as shares, not as
times. py-spy, where it is installed (``pip install py-spy``; needs the right to trace, so root), samples without that
skew.
"""

from __future__ import annotations

import io
import pstats
import shutil
import subprocess
import sys
from pathlib import Path

from bench import configs, wrk
from bench.client import check_subject
from bench.lab import Lab, Running
from bench.processes import Failed, wait_for_port
from bench.subjects import Subject


def profile(lab: Lab, subject: Subject, seconds: float, tool: str, lines: int = 45) -> str:
    """Load `subject` for `seconds` and return what `tool` (cprofile or py-spy) found, most expensive first."""
    place = lab.place(subject.name, lab.start_nginx_upstream())
    argv = subject.argv(place)
    if argv is None or "python" not in Path(argv[0]).name:
        raise Failed(f"{subject.name} is no Python program")
    output = lab.directory / "profile"
    if tool == "cprofile":
        argv = [argv[0], "-m", "cProfile", "-o", str(output), *(part for part in argv[1:] if part != "-P")]
    process = lab.processes.start(subject.name, argv, lab.cores.proxy)
    wait_for_port(process, place.listen)
    running = Running(subject.name, place.listen, process)
    check_subject(lab, running)
    sampler = _py_spy(process.pid, seconds, output) if tool == "py-spy" else None
    report = wrk.run(
        place.listen,
        configs.OBJECT_PATH,
        connections=16,
        seconds=seconds,
        core=lab.cores.load,
        directory=lab.directory,
    )
    head = f"{subject.name}: {report.rate:,.0f} requests/s while profiled; errors: {report.errors or 'none'}\n"
    if sampler is not None:
        sampler.communicate()
        return head + _flat(output.read_text(), lines)
    process.stop(patience=10)  # cProfile writes its file at the end of the program
    shown = io.StringIO()
    pstats.Stats(str(output), stream=shown).strip_dirs().sort_stats("tottime").print_stats(lines)
    return head + shown.getvalue()


def _py_spy(pid: int, seconds: float, output: Path) -> subprocess.Popen[bytes]:
    if shutil.which("py-spy") is None and not (beside := Path(sys.executable).with_name("py-spy")).exists():
        raise Failed(f"py-spy is neither in PATH nor {beside}: pip install py-spy")
    program = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    options = ["--rate", "500", "--native", "--format", "raw", "--duration", str(round(seconds))]
    return subprocess.Popen([program, "record", "--pid", str(pid), *options, "--output", str(output)])


def _flat(stacks: str, lines: int) -> str:
    """Sum py-spy's folded stacks up by their innermost frame."""
    own: dict[str, int] = {}
    total: dict[str, int] = {}
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        own[frames[-1]] = own.get(frames[-1], 0) + int(count)
        for frame in set(frames):
            total[frame] = total.get(frame, 0) + int(count)
    whole = sum(own.values()) or 1
    ranked = sorted(own, key=lambda frame: own[frame], reverse=True)[:lines]
    return "\n".join(f"{own[f] / whole:6.1%} own {total[f] / whole:6.1%} with callees  {f}" for f in ranked) + "\n"
