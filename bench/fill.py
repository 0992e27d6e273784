"""Fills one table of mcproxy and prints by how many bytes this process grew: ``fill.py tokens|buckets COUNT``.

Names, groups and extras are as long as those of real service accounts; the tokens, of which only hashes are kept, too.
Everything is used once before, with other names, so that no code and no empty table is counted.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.task import Clock

from mcproxy.config import model
from mcproxy.dispatch.flow_control_set import FlowControls
from mcproxy.identity.authentication.token_authenticator import Accepted, CacheTimes
from mcproxy.identity.authentication.token_union import UnionTokenAuthenticator
from mcproxy.kube.user import UserInfo
from mcproxy.net.wall_time import WallSeconds
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.requests.coroutines import known
from tests.dispatch.permits import at_once

_TOKEN_BYTES = 1000


def main(arguments: list[str]) -> int:
    table, count = arguments[0], int(arguments[1])
    add = {"tokens": adds_tokens, "buckets": adds_users}[table]()
    add(count)  # a number that does not come again below
    before = _resident()
    for number in range(count):
        add(number)
    print(_resident() - before)
    return 0


def adds_tokens() -> Callable[[int], object]:
    """Return what makes a union of token authenticators cache one more token."""
    union = UnionTokenAuthenticator(
        (cast(Any, _Reviewer()),),
        allow_system_names=False,
        share_service_accounts=False,
        shared=cast(Any, SimpleNamespace(reactor=_StoppedClock(), metrics=Metrics())),
    )
    return lambda number: known(union.authenticate(b"%08d" % number + b"t" * (_TOKEN_BYTES - 8)))


def adds_users() -> Callable[[int], object]:
    """Return what has a flow control see one more user."""
    control = model.FlowControl(
        name="each", type=model.FlowControlType.TOKEN_BUCKET, qps=0.001, burst=10, per=model.Per.USER
    )
    limits = FlowControls.build((control,), Clock()).limits_for(("each",), "east")
    return lambda number: at_once(limits.acquire(_name(number), False))


class _StoppedClock(Clock):
    """A reactor's two times (`mcproxy.net.wall_time`), neither of which passes."""

    def wall_seconds(self) -> WallSeconds:
        return WallSeconds(1_790_000_000.0)


class _Reviewer:
    """A cluster that accepts every token at once, each as another service account."""

    name = "tokenReview by cluster east"
    cluster = "east"
    cache_times = CacheTimes(120.0, 10.0)

    def authenticate(self, token: bytes) -> Accepted:
        number = int(token[:8])
        groups = ("system:serviceaccounts", f"system:serviceaccounts:namespace-{number % 1000:04d}")
        extra = (
            ("authentication.kubernetes.io/credential-id", (f"JTI={number:036d}",)),
            ("authentication.kubernetes.io/node-name", (f"node-{number % 100}",)),
            ("authentication.kubernetes.io/pod-name", (f"builder-{number:010d}",)),
        )
        return Accepted(UserInfo(_name(number), groups, f"{number:036d}", extra))


def _name(number: int) -> str:
    return f"system:serviceaccount:namespace-{number % 1000:04d}:builder-{number:06d}"


def _resident() -> int:
    """Return VmRSS in bytes."""
    gc.collect()
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError("no VmRSS in /proc/self/status")
    return int(found[1]) * 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
