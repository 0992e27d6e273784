"""What kubectl prints, without what differs from one run to the next; and how it upgrades."""

from __future__ import annotations

import re

from tests.e2e.processes import Result

WEBSOCKET = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "true", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "true"}
SPDY = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"}

# What differs from one run to the next wherever it goes.
DIFFERENT = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "UID"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"\b[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d \+0000"), "TIME"),
    (re.compile(r'(resourceVersion"?: "?)\d+'), r"\1RV"),
    (re.compile(r"\b10\.(244|96)\.\d+\.\d+\b"), "IP"),
    (re.compile(r"(?<= )(?=\d+[dhms])(\d+d)?(\d+h)?(\d+m)?(\d+s)?(?= |$)", re.M), "AGE"),
    (re.compile(r"  +"), "  "),
    (re.compile(r"(containerd://)[0-9a-f]+"), r"\1ID"),
    (re.compile(r"127\.0\.0\.1:\d+(/clusters/[\w-]+)?"), "SERVER"),
    (re.compile(r"localhost:\d+"), "LOCAL"),
)


def normalised(result: Result) -> Result:
    stdout, stderr = result.stdout, result.stderr
    for pattern, instead in DIFFERENT:
        stdout, stderr = pattern.sub(instead, stdout), pattern.sub(instead, stderr)
    return Result(result.status, stdout, stderr)
