"""Which configuration each worker has in force: a policy of the file that says its number in a refusal."""

from __future__ import annotations

from tests.e2e.http_client import Client

PATH = "/generation"
STATUS = 418


def policy(number: int, more: str = "") -> str:
    """Return keys of a server that answers `PATH` with the number of the file's generation; `more` are policies."""
    rules = f'rules: [{{verbs: ["*"], nonResourceURLs: ["{PATH}"]}}]'
    reject = f'reject: {{code: {STATUS}, message: "generation {number}"}}'
    everything = '[{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}, {verbs: ["*"], nonResourceURLs: ["*"]}]'
    return f", dispatch: [{{name: generation, {rules}, {reject}}}, {more}{{name: rest, rules: {everything}}}]"


def generation(client: Client) -> int:
    """Return the generation of the configuration that answers on this connection."""
    answer = client.request("GET", PATH)
    assert answer.status == STATUS, (answer.status, answer.body[:300])
    return int(answer.json["message"].rpartition("generation ")[2])
