"""Finds all pairs of certificate and key in a configuration, with their locations, and replaces some of them.

Listeners use such pairs (`certificates`). The proxy presents others to clusters, front proxies, webhooks, Redis
and hubs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from mcproxy.certificate_blocks import load_certificates
from mcproxy.config.model import (
    Authentication,
    Certificate,
    ClusterConfig,
    Config,
    DaemonConfig,
    ListenerConfig,
    PEMFile,
)
from mcproxy.config.server_names import names_in

T = TypeVar("T")

PairLocation = tuple[str, ...]
"""Section, entry name and field names, such as ("clusters", "east", "credentials")."""

_REDIS = ("daemon", "shared_state", "redis")


class Pair(NamedTuple):
    """A certificate chain, leaf first, and the key of the leaf."""

    chain: PEMFile
    key: PEMFile


def pairs_in(config: Config) -> dict[PairLocation, Pair]:
    """Return the pairs of a configuration."""
    owners: list[tuple[PairLocation, Any]] = []
    for cluster in config.clusters:
        owners.append((("clusters", cluster.name, "credentials"), cluster.credentials))
        owners.append((("clusters", cluster.name, "front_proxy"), cluster.front_proxy))
    owners += [
        (("authentication", each.name, "webhook", "credentials"), each.webhook.credentials)
        for each in config.authentication
        if each.webhook is not None
    ]
    owners += [
        (("listeners", each.name, "dial", "tls"), each.dial.tls) for each in config.listeners if each.dial is not None
    ]
    if config.daemon.shared_state is not None:
        owners.append((_REDIS, config.daemon.shared_state.redis))
    found: dict[PairLocation, Pair] = {
        ("certificates", each.name): Pair(each.chain, each.key) for each in config.certificates
    }
    for place, owner in owners:
        if owner is not None and owner.certificate is not None and owner.key is not None:
            found[place] = Pair(owner.certificate, owner.key)
    return found


def with_pairs(config: Config, pairs: Mapping[PairLocation, Pair]) -> Config:
    """Return the configuration with the pairs at some locations replaced; unchanged objects are reused.

    Server names that come from a replaced certificate are read from the new one. Raises ValueError if it is unreadable.
    """
    return _with(
        config,
        certificates=_each(config.certificates, lambda each: _certificate(each, pairs)),
        clusters=_each(config.clusters, lambda each: _cluster(each, pairs)),
        authentication=_each(config.authentication, lambda each: _authentication(each, pairs)),
        listeners=_each(config.listeners, lambda each: _listener(each, pairs)),
        daemon=_daemon(config.daemon, pairs),
    )


def _certificate(certificate: Certificate, pairs: Mapping[PairLocation, Pair]) -> Certificate:
    pair = pairs.get(("certificates", certificate.name))
    if pair is None:
        return certificate
    names = certificate.server_names
    if names == _names(certificate.chain):
        names = _names(pair.chain)
    return replace(certificate, chain=pair.chain, key=pair.key, server_names=names)


def _cluster(cluster: ClusterConfig, pairs: Mapping[PairLocation, Pair]) -> ClusterConfig:
    place = ("clusters", cluster.name)
    return _with(
        cluster,
        credentials=_own(cluster.credentials, pairs.get((*place, "credentials"))),
        front_proxy=_own(cluster.front_proxy, pairs.get((*place, "front_proxy"))),
    )


def _authentication(authentication: Authentication, pairs: Mapping[PairLocation, Pair]) -> Authentication:
    webhook = authentication.webhook
    if webhook is None:
        return authentication
    pair = pairs.get(("authentication", authentication.name, "webhook", "credentials"))
    return _with(authentication, webhook=_with(webhook, credentials=_own(webhook.credentials, pair)))


def _listener(listener: ListenerConfig, pairs: Mapping[PairLocation, Pair]) -> ListenerConfig:
    dial = listener.dial
    if dial is None:
        return listener
    pair = pairs.get(("listeners", listener.name, "dial", "tls"))
    return _with(listener, dial=_with(dial, tls=_own(dial.tls, pair)))


def _daemon(daemon: DaemonConfig, pairs: Mapping[PairLocation, Pair]) -> DaemonConfig:
    shared = daemon.shared_state
    if shared is None:
        return daemon
    return _with(daemon, shared_state=_with(shared, redis=_own(shared.redis, pairs.get(_REDIS))))


def _own(owner: T, pair: Pair | None) -> T:
    """Return `owner`, which has a certificate of the proxy, with `pair` instead of its own pair."""
    return owner if pair is None else _with(owner, certificate=pair.chain, key=pair.key)


def _with(node: T, **fields: Any) -> T:
    """Return a dataclass with these field values, or `node` itself if the values are the same objects."""
    changed = {name: value for name, value in fields.items() if value is not getattr(node, name)}
    return replace(node, **changed) if changed else node  # type: ignore[type-var]


def _each(nodes: tuple[T, ...], change: Any) -> tuple[T, ...]:
    changed = tuple(map(change, nodes))
    return nodes if all(new is old for new, old in zip(changed, nodes, strict=True)) else changed


def _names(chain: PEMFile) -> tuple[str, ...]:
    return names_in(load_certificates(chain.data)[0])
