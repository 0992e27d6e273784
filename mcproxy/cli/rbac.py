"""`mcproxy rbac`: prints the minimal roles that each cluster must grant the proxy, as YAML for `kubectl apply`."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from mcproxy.cli import BAD_CONFIG, OK, USAGE, configuration

if TYPE_CHECKING:
    from mcproxy.config import model
    from mcproxy.identity.required_rights import Right

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_RBAC = "rbac.authorization.k8s.io"
_ACCOUNT = ("mcproxy", "mcproxy")  # namespace and name
_TOKEN_SECRET = "mcproxy-token"


class _Subject(NamedTuple):
    """The user name of the proxy in the cluster, and its source."""

    user: str
    because: str


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "rbac",
        help="print the minimal rights that clusters must grant the proxy",
        description="Print, as YAML for kubectl apply, the ClusterRole with the least rights that each cluster must "
        "grant the proxy for this configuration, a Role for each namespace with rights of its own, and the bindings. "
        "With --apiservice instead the roles that an API server publishes or needs, to be reviewed first.",
        epilog="examples:\n  mcproxy rbac --cluster east | kubectl --context east apply -f -\n"
        "  mcproxy rbac --cluster east --service-account\n"
        "  mcproxy rbac --cluster east --constrained | kubectl --context east apply -f -\n"
        "  mcproxy rbac --apiservice metrics.k8s.io/v1beta1 > roles.yaml",
    )
    configuration.add_option(parser)
    parser.add_argument(
        "--apiservice",
        metavar="G/V",
        help="instead, the roles for the API server of this group and version in apiServices: what it publishes within "
        "its own group, else made of its discovery",
    )
    parser.add_argument("--cluster", metavar="NAME", help="only for this cluster (default: all, one after the other)")
    parser.add_argument(
        "--constrained",
        action="store_true",
        help="let the proxy name users by constrained impersonation (Kubernetes 1.36, KEP-5284): not for whatever they "
        "may do, but only for the requests that the file lets through",
    )
    whom = parser.add_mutually_exclusive_group()
    whom.add_argument(
        "--user",
        metavar="NAME",
        help="the user name that the cluster knows the proxy by (default: that of its credential, else the service "
        "account mcproxy in the namespace mcproxy); with --apiservice that of the API server",
    )
    whom.add_argument(
        "--service-account",
        action="store_true",
        help="print also a namespace, service account and token to join a cluster with",
    )


def run(args: argparse.Namespace) -> int:
    """Print the roles; 2 for an unknown cluster, 78 if the file has errors."""
    if args.apiservice is not None:
        if args.cluster is not None or args.service_account or args.constrained:
            print("mcproxy rbac: --apiservice goes with --user alone: its cluster is in apiServices", file=sys.stderr)
            return USAGE
        from mcproxy.cli import apiservice_roles

        return apiservice_roles.run(args)
    config = configuration.read(args.config, only_yaml=True)
    if config is None:
        return BAD_CONFIG
    clusters = [cluster for cluster in config.clusters if args.cluster in (None, cluster.name)]
    if args.cluster is not None and not clusters:
        from mcproxy.config.suggestions import suggest

        right = suggest(args.cluster, (cluster.name for cluster in config.clusters))
        print(f"mcproxy rbac: {args.config} has no cluster {args.cluster}; {right}", file=sys.stderr)
        return USAGE
    for cluster in clusters:
        for line in _lines(config, cluster, args):
            print(line)
    return OK


def _lines(config: model.Config, cluster: model.ClusterConfig, args: argparse.Namespace) -> Iterator[str]:
    from mcproxy.config.credential_checks import has_any
    from mcproxy.config.model import UpstreamIdentity
    from mcproxy.identity.required_rights import has_own_reviews
    from mcproxy.kube.user import SERVICE_ACCOUNT_PREFIX

    account_name = f"{SERVICE_ACCOUNT_PREFIX}{':'.join(_ACCOUNT)}"
    if args.user:
        subject = _Subject(args.user, "from --user")
    elif cluster.is_behind_tunnels and (
        cluster.identity is UpstreamIdentity.REQUEST_HEADER or not has_any(cluster.credentials)
    ):
        yield from _behind_tunnels(cluster)
        return
    elif args.service_account:
        subject = _Subject(account_name, "to be made")
    elif not has_any(cluster.credentials):
        yield f"# Cluster {cluster.name}: mcproxy has no credential there, so there is no user to grant rights to."
        return
    else:
        unknown = _Subject(account_name, "a guess: its credential has no name; see --user")
        subject = _named_by(cluster.credentials) or unknown
    yield f"# Cluster {cluster.name}: what it must grant mcproxy, which it knows as {json.dumps(subject.user)}"
    yield f"# ({subject.because})."
    if not has_own_reviews(config, cluster):
        deciding = dict.fromkeys(
            service.authority
            for server in config.servers
            for service in server.api_services
            if service.cluster == cluster.name
        )
        yield f"# It extends the API of {', '.join(deciding)}: an API server that asks there who may do what needs the"
        yield "# roles in that cluster."
    if cluster.identity is UpstreamIdentity.PROXY:
        yield "# Identity Proxy: what clients shall be able to do there must be granted in addition."
    if args.constrained and cluster.identity is UpstreamIdentity.IMPERSONATE:
        yield from _constrained_notes(cluster)
    if args.service_account:
        yield from _account()
    yield from _roles(config, cluster, subject.user, constrained=args.constrained)


def _behind_tunnels(cluster: model.ClusterConfig) -> Iterator[str]:
    yield f"# Cluster {cluster.name}: it dials out, and mcproxy needs no credential there: the mcproxy beside it, the"
    yield "# edge, names users with its own, and its `mcproxy rbac` prints what that needs. Health checks, reviews and"
    yield f"# caches of this one are the edge's hubUser there: mcproxy rbac --cluster {cluster.name} --user HUBUSER"


def _constrained_notes(cluster: model.ClusterConfig) -> Iterator[str]:
    from mcproxy.identity.constrained_rights import refused_extras

    yield "# Constrained impersonation: Kubernetes 1.36 or later. Roles that give mcproxy the verb impersonate give"
    yield "# more: remove them. It never gives the group system:masters: requests of its users are refused."
    refused = refused_extras(cluster)
    if refused:
        yield f"# Requests with extras without a domain (impersonateExtras) are refused: {', '.join(refused)}."


def _account() -> Iterator[str]:
    namespace, name = _ACCOUNT
    yield from _document({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    metadata = {"namespace": namespace, "name": name}
    yield from _document({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    yield "---"
    yield "# The cluster fills in the token and its own CA certificate:"
    yield f"# kubectl -n {namespace} get secret {_TOKEN_SECRET} -o go-template='{{{{.data.token | base64decode}}}}'"
    metadata = {
        "namespace": namespace,
        "name": _TOKEN_SECRET,
        "annotations": {"kubernetes.io/service-account.name": name},  # type: ignore[dict-item]
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "kubernetes.io/service-account-token",
    }
    yield from _body(secret)


def _roles(config: model.Config, cluster: model.ClusterConfig, user: str, *, constrained: bool) -> Iterator[str]:
    """Yield the ClusterRole with its binding, then a Role with its binding for each namespace with separate rights.

    The Roles come last, because their namespaces may not exist yet when the roles are applied.
    """
    from mcproxy.identity.required_rights import required_rights

    rights: dict[str, list[Right]] = {"": []}
    for right in required_rights(config, cluster, constrained=constrained):
        rights.setdefault(right.namespace, []).append(right)
    for namespace, wanted in rights.items():
        metadata = {"namespace": namespace, "name": _role_name(cluster)} if namespace else {"name": _role_name(cluster)}
        kind = "Role" if namespace else "ClusterRole"
        yield from _document({"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": metadata})
        yield "rules:"
        for why, rule in _rules(wanted):
            yield f"  # {why}"
            lead = "- "
            for key, value in rule.items():
                yield f"  {lead}{key}: {json.dumps(value)}"
                lead = "  "
        yield from _binding(metadata, kind, user)


def _rules(rights: Iterable[Right]) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield purposes and rules. Rights with one purpose that differ in only one list become one rule."""
    rules: list[tuple[str, dict[str, list[str]]]] = [(right.why, right.rule) for right in rights]
    for key in ("verbs", "resources", "resourceNames", "nonResourceURLs"):
        merged: list[tuple[str, dict[str, list[str]]]] = []
        for why, rule in rules:
            rest = {name: value for name, value in rule.items() if name != key}
            same = (one for one in merged if one[0] == why and {**one[1], key: []} == {**rest, key: []})
            found = next(same, None) if key in rule else None
            if found is None:
                merged.append((why, {name: list(value) for name, value in rule.items()}))
            else:
                found[1][key] += [item for item in rule[key] if item not in found[1][key]]
        rules = merged
    yield from rules


def _binding(metadata: dict[str, str], kind: str, user: str) -> Iterator[str]:
    from mcproxy.kube.user import service_account

    account = service_account(user)
    subject = (
        {"kind": "User", "apiGroup": _RBAC, "name": user}
        if account is None
        else {"kind": "ServiceAccount", "namespace": account[0], "name": account[1]}
    )
    yield from _document(
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": metadata["name"]},
            "subjects": [subject],
        }
    )


def _role_name(cluster: model.ClusterConfig) -> str:
    """Return the role's name. It contains the cluster's name, since two entries of the file can be one real cluster."""
    return f"mcproxy:{cluster.name}"


def _document(content: dict[str, Any]) -> Iterator[str]:
    yield "---"
    yield from _body(content)


def _body(content: dict[str, Any]) -> Iterator[str]:
    from mcproxy.config.dump import to_yaml

    yield from to_yaml(content).splitlines()


def _named_by(credentials: model.Credentials) -> _Subject | None:
    """Return the user name in the proxy's credential, or None.

    A client certificate takes precedence, as in a cluster that gets both.
    """
    if credentials.certificate is not None and credentials.certificate.data:
        from cryptography import x509
        from cryptography.x509.oid import NameOID

        certificate = x509.load_pem_x509_certificates(credentials.certificate.data)[0]
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if names:
            return _Subject(str(names[0].value), "the common name of its client certificate")
    if credentials.basic is not None:
        return _Subject(credentials.basic[0], "the user name of its credential")
    account = _account_of(_token(credentials))
    return None if account is None else _Subject(account, "the subject of its token")


def _token(credentials: model.Credentials) -> str:
    if credentials.token is not None:
        return credentials.token.reveal()
    if credentials.token_file is None:
        return ""
    try:
        with open(credentials.token_file, encoding="utf-8") as file:
            return file.read(64 * 1024).strip()
    except (OSError, UnicodeDecodeError):  # the file can exist only on the daemon's machine
        return ""


def _account_of(token: str) -> str | None:
    """Return the user name in a service account's token (a JWT). It is not verified, since it is only printed."""
    from mcproxy.kube.user import service_account

    try:
        payload = token.split(".")[1]
        subject = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sub"]
    except (IndexError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return subject if isinstance(subject, str) and service_account(subject) else None
