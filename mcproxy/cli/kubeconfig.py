"""`mcproxy kubeconfig`: prints a kubeconfig for clients of one of the proxy's virtual servers.

It is made from the configuration alone. Credentials outside of it (a client's certificate, a login) are omitted, and a
message on standard error names what to add.
"""

from __future__ import annotations

import argparse
import base64
import re
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

from mcproxy.cli import BAD_CONFIG, OK, USAGE, configuration
from mcproxy.config.suggestions import suggest

if TYPE_CHECKING:
    from cryptography import x509

    from mcproxy.config import model

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


class _UnknownError(Exception):
    """The kubeconfig cannot be derived from the configuration; str() is a sentence."""


class _Place(NamedTuple):
    """The address of a server for clients. `name` is the TLS server name to send, "" for the host itself."""

    url: str
    name: str
    listener: model.ListenerConfig


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "kubeconfig",
        help="print a kubeconfig for clients of a server",
        description="Print a kubeconfig for clients of one of the configuration's servers. What only the client has "
        "(its certificate, a login) is left out, and standard error says what to add.",
        epilog="examples:\n  mcproxy kubeconfig --server fleet > kubeconfig\n"
        "  mcproxy kubeconfig --server fleet --user alice --ca tls/ca.crt --address fleet.example.com:6443",
    )
    configuration.add_option(parser)
    parser.add_argument("--server", metavar="NAME", required=True, help="the server's name in the configuration")
    parser.add_argument(
        "--user", metavar="NAME", help="a user of the server's token file, whose token is printed as well"
    )
    parser.add_argument(
        "--ca",
        metavar="FILE",
        help="the certificate authority for clients, PEM (default: that of the certificate's chain, if it holds one)",
    )
    parser.add_argument(
        "--address",
        metavar="HOST[:PORT]",
        help="where clients reach the server (default: its first server name, at the port of its listener)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the kubeconfig; 2 for an unknown server or user, 78 if the file has errors."""
    from mcproxy.config.dump import to_yaml

    config = configuration.read(args.config)
    if config is None:
        return BAD_CONFIG
    try:
        document, notes = _kubeconfig(config, args)
    except _UnknownError as error:
        print(f"mcproxy kubeconfig: {error}", file=sys.stderr)
        return USAGE
    sys.stdout.write(to_yaml(document))
    for note in notes:
        print(f"mcproxy kubeconfig: {note}", file=sys.stderr)
    return OK


def _kubeconfig(config: model.Config, args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    server = next((server for server in config.servers if server.name == args.server), None)
    if server is None:
        right = suggest(args.server, (server.name for server in config.servers))
        raise _UnknownError(f"{args.config} has no server {args.server}; {right}")
    place = _place(config, server, args.address)
    cluster: dict[str, Any] = {}
    notes: list[str] = []
    if place.name:
        cluster["tls-server-name"] = place.name
    if place.listener.tls is not None:
        data, note = _authority(config, place, args.ca)
        if data:
            cluster["certificate-authority-data"] = base64.b64encode(data).decode()
        if note:
            notes.append(note)
    elif args.ca is not None:
        raise _UnknownError(f"--ca: listener {place.listener.name} has no tls")
    user, more = _user(config, server, args.user)
    user_name = args.user or "client"
    contexts = dict(_contexts(server, place.url))
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url, **cluster}} for name, url in contexts.items()],
        "users": [{"name": user_name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user_name}} for name in contexts],
        "current-context": next(iter(contexts)),
    }, [*notes, *more]


def _contexts(server: model.Server, url: str) -> Iterator[tuple[str, str]]:
    """Yield the name and URL of each API of the server; the merged API of an aggregate comes first."""
    from mcproxy.config.model import AggregateBackendConfig, ClustersBackend

    backend = server.backend
    if isinstance(backend, ClustersBackend):
        yield from ((name, f"{url}/clusters/{name}") for name in backend.clusters)
        return
    yield server.name, url
    if isinstance(backend, AggregateBackendConfig):
        for name in backend.members:
            yield name if name != server.name else f"{server.name}-{name}", f"{url}/clusters/{name}"


def _place(config: model.Config, server: model.Server, address: str | None) -> _Place:
    from mcproxy.config.model import TCPBind, TunnelsBackend

    if isinstance(server.backend, TunnelsBackend):
        raise _UnknownError(f"server {server.name} accepts tunnels, and has no API")
    named = [listener for listener in config.listeners if listener.name in server.listeners]
    mine = [listener for listener in named if listener.dial is None]
    if not mine:
        reason = "is on no listener" if not named else "is reached through a tunnel alone: make a kubeconfig of the hub"
        raise _UnknownError(f"server {server.name} {reason}")
    by_address = [listener for listener in mine if isinstance(listener.bind, TCPBind)]
    # TLS first, because its server name is sufficient, and nothing is sent in clear text.
    listener = min(by_address, key=lambda listener: listener.tls is None, default=mine[0])
    bind = listener.bind
    port = bind.port if isinstance(bind, TCPBind) else 0
    exact = next((name for name in server.server_names if not name.startswith("*.")), "")
    if address is not None:
        host, given = _split(address)
        port = given or port
    elif exact:
        host = exact
    elif isinstance(bind, TCPBind) and not _is_unspecified(bind.host):
        host = bind.host
    else:
        raise _UnknownError(f"the name by which clients reach server {server.name} is unknown; add --address HOST")
    if not port:
        raise _UnknownError(f"the port at which clients reach server {server.name} is unknown; add --address HOST:PORT")
    scheme = "http" if listener.tls is None else "https"
    shown = f"[{host}]" if ":" in host else host
    return _Place(f"{scheme}://{shown}:{port}", _tls_name_for(config, server, host, exact, listener), listener)


def _tls_name_for(
    config: model.Config, server: model.Server, host: str, exact: str, listener: model.ListenerConfig
) -> str:
    """Return the TLS server name that selects `server`; "" if `host` itself selects it."""
    from mcproxy.net.name_table import NameTable

    here = [other for other in config.servers if listener.name in other.listeners]
    named = NameTable((name, other.name) for other in here for name in other.server_names).find(host)
    if named == server.name:
        return ""
    if named is not None:  # `host` as TLS server name or Host header would select that other server
        raise _UnknownError(f"{host} is a name of server {named}; say another --address")
    if exact and listener.tls is not None:
        return exact
    if server.default:
        return ""
    names = f"by its name ({', '.join(server.server_names)})" if server.server_names else "by nothing"
    raise _UnknownError(f"server {server.name} is found {names}, and {host} leads elsewhere")


_ADDRESS = re.compile(
    r"(?:\[(?P<v6>[^]]+)\]|(?P<host>[^:/\[\]]+))(?::(?P<port>[0-9]{1,5}))?|(?P<bare>[0-9a-fA-F.]*:[0-9a-fA-F.]*:[0-9a-fA-F:.]*)"
)


def _split(address: str) -> tuple[str, int]:
    """Split HOST, HOST:PORT, [v6] or [v6]:PORT; the port is 0 if it is absent, as in a bare v6."""
    match = _ADDRESS.fullmatch(address)
    port = int((match and match["port"]) or 0)
    if match is None or port > 65535 or (match["port"] and not port):
        raise _UnknownError(f"--address {address} is no HOST or HOST:PORT")
    return (match["v6"] or match["host"] or match["bare"]).lower(), port


def _is_unspecified(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return host in ("", "*")


def _authority(config: model.Config, place: _Place, file: str | None) -> tuple[bytes, str]:
    """Return the certificate authority for clients, as PEM, and a note on it; either may be empty.

    The authority is from `file` if given, else it is the self-signed certificate in the chain that clients get.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    chain = x509.load_pem_x509_certificates(_shown_chain(config, place))
    if file is None:
        root = next((one for one in reversed(chain) if one.issuer == one.subject), None)
        if root is None:
            return b"", (
                "the certificate's chain does not hold its authority: name it with --ca FILE, unless the systems of "
                "clients trust it"
            )
        return root.public_bytes(Encoding.PEM), ""
    authorities = _certificates_in(file)
    pem = b"".join(one.public_bytes(Encoding.PEM) for one in authorities)
    if any(_issued(authority, one) for authority in authorities for one in chain):
        return pem, ""
    return pem, f"no certificate of {file} has issued the certificate that clients are shown: they will not trust it"


def _shown_chain(config: model.Config, place: _Place) -> bytes:
    """Return the PEM chain that a client of `place` gets."""
    from mcproxy.net.name_table import NameTable

    assert place.listener.tls is not None
    host = place.name or place.url.rpartition("/")[2].rpartition(":")[0].strip("[]")
    by_name = {certificate.name: certificate for certificate in config.certificates}
    offered = [by_name[name] for name in place.listener.tls.certificates]
    names = NameTable((name.lower(), certificate) for certificate in offered for name in certificate.server_names)
    return (names.find(host) or offered[0]).chain.data


def _certificates_in(file: str) -> list[x509.Certificate]:
    """Return the certificates of a PEM file; its other content, such as a key, is dropped."""
    from mcproxy.certificate_blocks import load_certificates

    try:
        with open(file, "rb") as pem:
            return load_certificates(pem.read())
    except OSError as error:
        raise _UnknownError(f"--ca {file}: {error.strerror or error}") from error
    except ValueError:
        raise _UnknownError(f"--ca {file} holds no PEM certificate") from None


def _issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    """Return whether `authority` has signed `certificate`, or is that certificate."""
    from mcproxy.net.certificate_paths import is_issued_by

    return authority == certificate or is_issued_by(certificate, authority)


def _user(config: model.Config, server: model.Server, name: str | None) -> tuple[dict[str, Any], list[str]]:
    used = next((item for item in config.authentication if item.name == server.authentication), None)
    if name is not None:
        tokens = () if used is None or used.token_file is None else used.token_file.tokens
        found = next((token for token in tokens if token.user == name), None)
        if found is None:
            where = "has no token file" if not tokens else "has no such user in its token file"
            raise _UnknownError(f"server {server.name} {where}, so there is no credential of {name} to print")
        return {"token": found.token.reveal()}, []
    if used is None:
        return {}, _unauthenticated(config, server)
    return {}, [f"add to the user what server {server.name} takes: {', or '.join(_ways(used))}"]


def _unauthenticated(config: model.Config, server: model.Server) -> list[str]:
    """Return notes on a server without authentication; with Passthrough the cluster authenticates clients."""
    from mcproxy.config.model import UpstreamIdentity

    clusters = {cluster.name: cluster for cluster in config.clusters}
    own = [name for name in server.clusters if clusters[name].identity is UpstreamIdentity.PASSTHROUGH]
    return [f"add to the user the client's own token for {', '.join(own)}"] if own else []


def _ways(used: model.Authentication) -> Iterator[str]:
    front_proxies = used.request_header is not None and used.request_header.ca is not None
    if used.client_ca is not None or front_proxies:
        yield "client-certificate and client-key"
    if used.token_file is not None:
        yield f"a token of {used.token_file.path} (--user NAME prints one)"
    for issuer in used.oidc:
        yield f"an exec plugin that gets ID tokens of {issuer.issuer} for {', '.join(issuer.audiences)}"
    if used.token_review is not None or used.webhook is not None:
        yield "a token (of a service account, for example)"
    if used.anonymous.enabled:
        yield "nothing (anonymous requests are taken)"
