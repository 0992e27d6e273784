"""What tests have kubectl do on several routes to a cluster."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from tests.e2e.processes import Kubectl, Result

MAP = (
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: applied-{route}, labels: {{by: r{route}}}}}\ndata: {{a: one}}\n"
)


def written_and_watched(kubectl: Kubectl, route: str) -> list[Result]:
    """Apply, apply on the server, patch and delete a ConfigMap, with a watch beside it.

    Returns the four results, and one whose output is the first and the last event, each with the number of data.
    """
    with kubectl.begin("get", "cm", "-l", f"by=r{route}", "-w", "--output-watch-events") as watching:
        applied = kubectl("apply", "-f", "-", stdin=MAP.format(route=route))
        watching.wait_for("ADDED")
        again = kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=MAP.format(route=route))
        patched = kubectl("patch", "cm", f"applied-{route}", "-p", '{"data": {"b": "two"}}')
        watching.wait_for("2  ")
        deleted = kubectl("delete", "cm", f"applied-{route}")
        watching.wait_for("DELETED")
        events = re.findall(rf"^(\w+) +applied-{route} +(\d)", watching.output.decode(), re.M)
    return [applied, again, patched, deleted, Result(0, repr([events[0], events[-1]]), "")]


def copied_and_forwarded(kubectl: Kubectl, route: str, environ: dict[str, str], directory: Path) -> list[Result]:
    """Copy the file `sent` in `directory` to a pod and back, which must not change it, then forward a port that echoes.

    Returns the status of each, the last one with the echo.
    """
    there = kubectl("cp", "sent", f"db-0:/tmp/{route}", environ=environ, cwd=directory)
    back = kubectl("cp", f"db-0:/tmp/{route}", route, environ=environ, cwd=directory)
    assert (directory / route).read_bytes() == (directory / "sent").read_bytes()
    (directory / route).unlink()
    with kubectl.begin("port-forward", "pod/db-0", ":5432", environ=environ) as forwarding:
        forwarding.wait_for("-> 5432")
        port = int(re.findall(r"127\.0\.0\.1:(\d+) -> 5432", forwarding.output.decode())[0])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(b"echo this\n")
            echoed = connection.makefile("rb").readline().decode()
    return [Result(there.status, "", ""), Result(back.status, "", ""), Result(0, echoed, "")]
