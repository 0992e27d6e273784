"""`mcproxy check --connect` of a listener that dials: what the answers of a hub mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mcproxy.cli.connect_tunnels import judged
from mcproxy.tunnels import protocol

BY_CERTIFICATE: Any = SimpleNamespace(tunnel="site-a", credentials=None)
BY_TOKEN: Any = SimpleNamespace(tunnel="site-a", credentials=object())


def test_a_hub_that_misses_the_instance_alone_would_accept_the_tunnel() -> None:
    found = judged(400, protocol.NO_INSTANCE, BY_CERTIFICATE)
    assert (found.what, found.todo) == ("would accept tunnel site-a", "")


@pytest.mark.parametrize(
    ("status", "message", "what", "todo"),
    [
        (
            400,
            f"… with Upgrade: {protocol.UPGRADE.decode()}",
            "does not get the field Upgrade",
            "pass the field Upgrade",
        ),
        (400, "", "answers 400", "the backend `tunnels`"),
        (401, "Unauthorized", "answers 401: Unauthorized", "`dial.tls.certFile`"),
        (403, 'user "x" may not', 'answers 403: user "x" may not', "`users` of tunnel site-a"),
        (404, "", "answers 404", "the backend `tunnels`"),
        (200, "", "answers 200", "the backend `tunnels`"),
        (503, "stopping", "answers 503: stopping", "tries again"),
    ],
)
def test_other_answers_are_faults(status: int, message: str, what: str, todo: str) -> None:
    found = judged(status, message, BY_CERTIFICATE)
    assert found.what.startswith(what)
    assert todo in found.todo


def test_the_key_of_a_token_is_named() -> None:
    assert "`dial.credentials.tokenFile`" in judged(401, "", BY_TOKEN).todo
