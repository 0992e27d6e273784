"""`mcproxy rbac --apiservice GROUP/VERSION`: prints the roles that an API server needs and publishes."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from mcproxy.cli import BAD_CONFIG, FAILED, OK, USAGE, configuration

if TYPE_CHECKING:
    from mcproxy.apiservices.role_objects import Template
    from mcproxy.config import model

GROUP_VERSION = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/v[a-z0-9]{1,62}")


def run(args: argparse.Namespace) -> int:
    """Print the template of each API server that serves the group-version.

    Return the exit status: 1 if an API server is unreachable or refuses, 2 for an unregistered group-version, 78 if
    the file has errors.
    """
    wanted = str(args.apiservice)
    if not GROUP_VERSION.fullmatch(wanted):
        print(f"mcproxy rbac: {wanted!r} is no GROUP/VERSION such as metrics.k8s.io/v1beta1", file=sys.stderr)
        return USAGE
    config = configuration.read(args.config)
    if config is None:
        return BAD_CONFIG
    services = [service for server in config.servers for service in server.api_services]
    owners = list({each.cluster: each for each in services if each.group_version == wanted}.values())
    if not owners:
        known = ", ".join(dict.fromkeys(each.group_version for each in services)) or "none"
        print(
            f"mcproxy rbac: no server of {args.config} has {wanted} in apiServices; there are: {known}", file=sys.stderr
        )
        return USAGE
    status = OK
    for owner, found in zip(owners, _ask(config, owners, args.user), strict=True):
        if isinstance(found, str):
            print(f"mcproxy rbac: API service {owner.object_name}, cluster {owner.cluster}: {found}", file=sys.stderr)
            status = FAILED
            continue
        print(found.text, end="")
        for refused in found.refused:
            print(f"mcproxy rbac: refused: {refused}", file=sys.stderr)
            status = FAILED
    return status


def _ask(config: model.Config, owners: list[model.APIService], user: str | None) -> list[Template | str]:
    """Return the template of each of `owners`, or the reason why it has none. Runs its own reactor and blocks."""
    from mcproxy.net.reactor import install

    reactor: Any = install()
    outcome: list[Any] = []

    def begin() -> None:
        work = Deferred.fromCoroutine(ask_all(reactor, config, owners, user))
        work.addBoth(outcome.append).addBoth(lambda _: reactor.stop())

    reactor.callWhenRunning(begin)
    reactor.run()
    if hasattr(outcome[0], "raiseException"):
        outcome[0].raiseException()
    found: list[Template | str] = outcome[0]
    return found


async def ask_all(
    reactor: Any, config: model.Config, owners: list[model.APIService], user: str | None
) -> list[Template | str]:
    """Return the template of each of `owners`, or a sentence that explains why it has none."""
    from mcproxy.apiservices.role_template import AskError, RefusedError, asker, template
    from mcproxy.daemon.runtime import make_upstream_context
    from mcproxy.http.deadlines import Deadlines
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.credentials import CredentialError

    deadlines = Deadlines(reactor)
    shared = make_upstream_context(reactor, deadlines, lambda endpoint: None)
    clusters = {cluster.name: cluster for cluster in config.clusters}
    found: list[Template | str] = []
    try:
        for owner in owners:
            try:
                cluster = Cluster.build(clusters[owner.cluster], shared)
            except CredentialError as error:
                found.append(error.cause)
                continue
            urls = [endpoint.url for endpoint in cluster.config.endpoints]
            asked = template(asker(cluster), owner.group, owner.version, user=user, because="from --user", urls=urls)
            try:
                found.append(await asked)
            except (AskError, RefusedError) as error:
                found.append(str(error))
            finally:
                cluster.stop()
    finally:
        deadlines.stop()
        shared.close()
    return found
