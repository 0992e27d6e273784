"""The certificates of a configuration and their expiry times, for the status document.

The data come from the files as the daemon last read them. A changed file counts after the next reload, a changed key
pair as soon as it is in use (`daemon.certificate_watch`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509

from mcproxy.certificate_blocks import read_blocks
from mcproxy.config import model
from mcproxy.daemon.status import Figures, rfc3339

if TYPE_CHECKING:
    from collections.abc import Sequence

_DAY = 86400.0


class Expiry(NamedTuple):
    """The relevant certificate of a file: a chain's leaf, or the authority that expires next."""

    name: str
    kind: str
    """server, client: presented to clients, or to a cluster or hub; ca, cluster: verifies clients, or a cluster or
    hub."""
    subject: str
    names: tuple[str, ...]
    not_after: float
    """Seconds since 1970; for a chain, the earliest end of its certificates."""
    file: str
    certificates: int
    """The number of certificates in the file."""


def of_certificates(expiries: Sequence[Expiry], wall: float) -> list[Figures]:
    """Return the figures of certificates; `wall` is the time of day. `daysLeft` is negative after the expiry."""
    return [
        {
            "name": each.name,
            "kind": each.kind,
            "subject": each.subject,
            "names": list(each.names),
            "notAfter": rfc3339(each.not_after),
            "daysLeft": round((each.not_after - wall) / _DAY, 2),
            "file": each.file,
            "certificates": each.certificates,
        }
        for each in expiries
    ]


def expiries_of(config: model.Config, wall: float) -> list[Expiry]:
    """Return the certificates of a configuration, one for each use, without unparsable ones.

    The certificate of a CA bundle is the next one to expire among those still valid at `wall`.
    """
    found = []
    for kind, name, pem, names in _files(config):
        certificates = read_blocks(pem.data).certificates
        if not certificates:
            continue
        chosen, not_after = _chain(certificates) if kind in ("server", "client") else _bundle(certificates, wall)
        subject = chosen.subject.rfc4514_string()
        found.append(Expiry(name, kind, subject, names, not_after, pem.path, len(certificates)))
    return found


def fingerprint_of(config: model.Config) -> str:
    """Return a short hash of a configuration, which is equal in all replicas with an equal configuration.

    It covers the certificates in files, but no secrets (keys, tokens, passwords), so that the hash may be published.
    """
    digest = hashlib.sha256(repr(config).encode())
    for _, _, pem, _ in _files(config):
        digest.update(pem.data)
    return digest.hexdigest()[:12]


def _files(config: model.Config) -> Iterator[tuple[str, str, model.PEMFile, tuple[str, ...]]]:
    """Yield kind, name, file and server names of each file with certificates, each name once per kind."""
    for certificate in config.certificates:
        yield "server", certificate.name, certificate.chain, certificate.server_names
    for cluster in config.clusters:
        if cluster.credentials.certificate is not None:
            yield "client", cluster.name, cluster.credentials.certificate, ()
        if cluster.front_proxy is not None:
            yield "client", f"{cluster.name}/frontProxy", cluster.front_proxy.certificate, ()
        if cluster.tls.ca is not None:
            yield "cluster", cluster.name, cluster.tls.ca, ()
    for listener in config.listeners:
        if listener.dial is not None:
            if listener.dial.tls.certificate is not None:
                yield "client", f"{listener.name}/dial", listener.dial.tls.certificate, ()
            yield "cluster", f"{listener.name}/dial", listener.dial.tls.ca, ()
    for chosen in config.authentication:
        yield from _of_authentication(chosen)
    redis = None if config.daemon.shared_state is None else config.daemon.shared_state.redis
    if redis is not None:
        if redis.certificate is not None:
            yield "client", "redis", redis.certificate, ()
        if redis.ca is not None:
            yield "cluster", "redis", redis.ca, ()


def _of_authentication(chosen: model.Authentication) -> Iterator[tuple[str, str, model.PEMFile, tuple[str, ...]]]:
    if chosen.client_ca is not None:
        yield "ca", chosen.name, chosen.client_ca, ()
    if chosen.request_header is not None and chosen.request_header.ca is not None:
        yield "ca", f"{chosen.name}/requestHeader", chosen.request_header.ca, ()
    for number, issuer in enumerate(chosen.oidc):
        if issuer.ca is not None:
            yield "cluster", f"{chosen.name}/oidc[{number}]", issuer.ca, ()
    webhook = chosen.webhook
    if webhook is not None:
        if webhook.credentials.certificate is not None:
            yield "client", f"{chosen.name}/webhook", webhook.credentials.certificate, ()
        if webhook.tls.ca is not None:
            yield "cluster", f"{chosen.name}/webhook", webhook.tls.ca, ()


def _end(certificate: x509.Certificate) -> float:
    return certificate.not_valid_after_utc.timestamp()


def _chain(certificates: Sequence[x509.Certificate]) -> tuple[x509.Certificate, float]:
    return certificates[0], min(map(_end, certificates))


def _bundle(certificates: Sequence[x509.Certificate], wall: float) -> tuple[x509.Certificate, float]:
    now = datetime.fromtimestamp(wall, UTC)
    valid = [each for each in certificates if each.not_valid_after_utc > now]
    chosen = min(valid, key=_end) if valid else max(certificates, key=_end)
    return chosen, _end(chosen)
