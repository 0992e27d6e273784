"""Which configuration each worker has in force: a policy of the file that says its number in a refusal."""

from __future__ import annotations

import contextlib

from tests.e2e.http_client import Client
from tests.e2e.workers.site import WorkersDaemon

PATH = "/generation"
STATUS = 418


def policy(number: int) -> str:
    """Return keys of a server that answers `PATH` with the number of the file's generation."""
    rules = f'rules: [{{verbs: ["*"], nonResourceURLs: ["{PATH}"]}}]'
    reject = f'reject: {{code: {STATUS}, message: "generation {number}"}}'
    everything = '[{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}, {verbs: ["*"], nonResourceURLs: ["*"]}]'
    return f", dispatch: [{{name: generation, {rules}, {reject}}}, {{name: rest, rules: {everything}}}]"


def generation(client: Client) -> int:
    """Return the generation of the configuration that answers on this connection."""
    answer = client.request("GET", PATH)
    assert answer.status == STATUS, (answer.status, answer.body[:300])
    return int(answer.json["message"].rpartition("generation ")[2])


def generations(daemon: WorkersDaemon, workers: set[int]) -> dict[int, int]:
    """Return the generation at each of these processes: connections are opened until each has one."""
    found: dict[int, int] = {}
    for _ in range(200):
        with contextlib.suppress(OSError), Client(daemon.address) as client:
            owner = daemon.family.owner(daemon.port, client.socket.getsockname()[1])
            if owner not in found:
                found[owner] = generation(client)
        if workers <= found.keys():
            return found
    raise AssertionError(f"of {workers} only {set(found)} took any of 200 connections")
