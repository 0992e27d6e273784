"""Process 1 reaps what others have left, and nothing of its own. A program that adopts as process 1 does tries it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, os, subprocess, sys
from mcproxy.daemon.process_setup import reap

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def ended(process):
    os.waitid(os.P_PID, process if isinstance(process, int) else process.pid, os.WEXITED | os.WNOWAIT)


def left_behind():
    plugin = "(read wait <&3; exec true) >/dev/null & echo $!"
    ends, begins = os.pipe()
    with open(ends, closefd=True) as reading:
        shell = subprocess.run(
            ["sh", "-c", plugin.replace("3", str(ends))],
            pass_fds=(ends,), stdout=subprocess.PIPE, text=True, start_new_session=True,
        )
    os.close(begins)  # it ends now that it is an orphan
    ended(int(shell.stdout))
    return int(shell.stdout)


assert reap(has_plugins=True) == []
orphans = {left_behind(), left_behind()}
assert set(reap(has_plugins=True)) == orphans
for has_plugins in (True, False):
    own = subprocess.Popen(["false"], start_new_session=has_plugins)
    ended(own)
    assert reap(has_plugins=has_plugins) == []
    assert own.wait() == 1
print("done")
"""


def test_only_what_others_have_left_is_reaped() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120)
    assert ran.stdout == "done\n", ran.stderr
