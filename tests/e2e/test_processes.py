"""kubectl is run again for what it has thrown away itself, and for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.processes import Kubectl, Result

DISCARDS = "E1123 07:33:51.541260    7708 websocket.go:296] Unknown stream id 1, discarding message"


def run_of(directory: Path, first_error: str) -> Result:
    """Run a program that prints `found` on its second run, and `first_error` on stderr on its first."""
    program = directory / "kubectl"
    program.write_text(
        f'#!/bin/sh\n[ -e "$HOME/ran" ] && echo found && exit\n: >"$HOME/ran"\necho "{first_error}" >&2\n'
    )
    program.chmod(0o755)
    return Kubectl(str(program), "kubeconfig", "direct", directory)("exec", "db-0", "--", "hostname")


def test_what_it_says_to_have_discarded_is_asked_for_again(tmp_path: Path) -> None:
    assert run_of(tmp_path, DISCARDS) == Result(0, "found\n", "")


@pytest.mark.parametrize("error", ["", "error: closed all streams", DISCARDS.replace("id 1", "id 9")])
def test_output_that_it_never_got_is_missed(tmp_path: Path, error: str) -> None:
    assert run_of(tmp_path, error) == Result(0, "", f"{error}\n")
