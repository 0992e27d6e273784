"""`mcproxy check --explain METHOD PATH`: explains step by step how a request is handled with the configuration.

A URL instead of a path means a request to the ingresses (`explain_ingress`).

It explains each decision that depends on the file alone: server, cluster, authentication, policy and its limits,
authorization. For an aggregate it explains them for each cluster that the request can reach (`explain_aggregate`).
Decisions at run time (by a review or the cluster itself) are only named. No connection is made.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mcproxy.apiservices.api_service_registry import Registry
from mcproxy.cli import FAILED, OK, USAGE, explain_aggregate
from mcproxy.config import model
from mcproxy.dispatch.explain import Explanation, RuleVerdict, explain_rules, shown, title
from mcproxy.dispatch.explain import explain as explain_policies
from mcproxy.identity.authorization.attributes import Attributes, required_attributes
from mcproxy.kube import requestinfo
from mcproxy.kube.numbers import plain_number
from mcproxy.kube.requestinfo import RequestInfo
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import (
    ANONYMOUS,
    ANONYMOUS_NAME,
    AUTHENTICATED,
    UNAUTHENTICATED,
    UserInfo,
    service_account,
    service_account_groups,
)
from mcproxy.proxy import cluster_path

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_WIDTH = 15  # width of the labels
_ANSWER = 5.0  # timeout of the answer of a running daemon (seconds)
_OF_ENDPOINTS = ("endpoints", "strategy")  # labels whose text can be the same for all members of an aggregate


class ExplainError(Exception):
    """The request or the server cannot be explained: no client could send it, or the file has no such server."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to those of `check`."""
    group = parser.add_argument_group(
        "explain a request",
        "Instead of checking further, show how a request is handled. Exit status: 0 it is served, "
        "1 it is refused, 2 wrong usage, 78 errors in the file.",
    )
    group.add_argument(
        "--explain",
        nargs=2,
        metavar=("METHOD", "PATH"),
        help="an HTTP method, and a path with its query; or a URL, https://HOST/PATH, for the ingresses",
    )
    group.add_argument(
        "--server",
        metavar="NAME",
        help="name, or the TLS name that a client sends (default: the only or the default server)",
    )
    group.add_argument("--user", metavar="NAME", help="the user, as authenticated (default: anonymous)")
    group.add_argument("--group", metavar="NAME", action="append", default=[], help="a group of the user; repeatable")


def misused(args: argparse.Namespace) -> str | None:
    """Return the error in the combination of options, if any."""
    if args.explain is None:
        given = [option for option in ("server", "user", "group") if getattr(args, option)]
        return f"--{given[0]} goes with --explain" if given else None
    given = [option for option in ("quiet", "strict") if getattr(args, option)]
    if given:
        return f"--{given[0]} does not go with --explain"
    from mcproxy.cli.explain_ingress import is_url

    given = [option for option in ("server", "user", "group") if getattr(args, option)]
    if given and is_url(args.explain[1]):
        return f"--{given[0]} goes with a path of an API server, not with a URL"
    return "--group goes with --user" if args.group and args.user is None else None


def run(args: argparse.Namespace, config: model.Config, file: str = "-") -> int:
    """Print the explanation; return 0 if the request is served, 1 if it is refused, 2 if it cannot be explained."""
    from mcproxy.cli.explain_ingress import IngressTrace, URLError, is_url, read_url

    if is_url(args.explain[1]):
        try:
            _method(args.explain[0])
            url = read_url(args.explain[1])
            ingress = IngressTrace(config, url, args.explain[0], _running(file, args))
        except (ExplainError, URLError) as wrong:
            print(f"mcproxy check: {wrong}", file=sys.stderr)
            return USAGE
        _print(ingress.lines())
        return FAILED if ingress.refused else OK
    try:
        method, target = _request_line(*args.explain)
        trace = RequestTrace(config, find_server(config.servers, args.server), _user(args.user, args.group))
    except ExplainError as wrong:
        print(f"mcproxy check: {wrong}", file=sys.stderr)
        return USAGE
    _print(trace.lines(method, target))
    return OK if trace.refusal is None else FAILED


def _running(file: str, args: argparse.Namespace) -> Mapping[str, Any] | None:
    """Return the status document of the daemon that runs the file; None without a daemon or answer."""
    if args.offline or file == "-":
        return None
    from mcproxy.cli.control_client import UnreachableError
    from mcproxy.cli.status import ask

    try:
        return ask(file, _ANSWER)[0]
    except UnreachableError:
        return None


def _print(lines: Iterator[tuple[str, str]]) -> None:
    for label, text in lines:
        print(f"{label:{_WIDTH}}{text}".rstrip())


def find_server(servers: Sequence[model.Server], name: str | None) -> model.Server:
    """Return the server with a name, or else the server that a client with that TLS server name reaches.

    That is the server with the exact server name, else with a matching wildcard, else the default server. Without a
    name it is the only server, else the default server. Raises ExplainError if the server is ambiguous, since
    different listeners can have servers with the same server name, and for a server of tunnels.
    """
    if name is None:
        servers = [server for server in servers if not isinstance(server.backend, model.TunnelsBackend)]
        found = [server for server in servers if server.default] if len(servers) > 1 else list(servers)
    else:
        wanted = name.lower().rstrip(".")
        found = (
            [server for server in servers if server.name == name]
            or [server for server in servers if wanted in server.server_names]
            or [server for server in servers if f"*.{wanted.partition('.')[2]}" in server.server_names]
            or [server for server in servers if server.default and "." in wanted]
        )
    if len(found) == 1 and isinstance(found[0].backend, model.TunnelsBackend):
        raise ExplainError(f"server {shown(found[0].name)} accepts tunnels, and has no API")
    if len(found) == 1:
        return found[0]
    names = ", ".join(server.name for server in found or servers) or "none"
    what = "--server must say which server" if name is None else f"no single server is called {shown(name)}"
    raise ExplainError(f"{what}; there are: {names}")


def _method(method: str) -> bytes:
    if method.upper() not in _METHODS:
        raise ExplainError(
            f"{shown(method)} is not an HTTP method ({', '.join(_METHODS)}); a watch is GET with ?watch=1"
        )
    return method.upper().encode()


def _request_line(method: str, path: str) -> tuple[bytes, bytes]:
    verb = _method(method)
    if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
        raise ExplainError(f"{shown(path)} is not a path; it begins with / and is percent-encoded, as in a URL")
    return verb, path.partition("#")[0].encode()


def _user(name: str | None, groups: Sequence[str]) -> UserInfo:
    """Return a user with the groups that authentication adds."""
    if name is None:
        return ANONYMOUS
    account = service_account(name)
    own = service_account_groups(account[0]) if account else ()
    implied = UNAUTHENTICATED if name == ANONYMOUS_NAME else AUTHENTICATED
    return UserInfo(name, tuple(dict.fromkeys((*groups, *own, implied))))


class RequestTrace:
    """The way of a request through a server; `refusal` is the first reason to refuse it."""

    def __init__(self, config: model.Config, server: model.Server, user: UserInfo, *, aggregated: bool = False) -> None:
        """`aggregated`: the request is for the server's aggregate, which can send it to several clusters or none."""
        self.config = config
        self.server = server
        self.user = user
        self.refusal: str | None = None
        self._aggregated = aggregated
        self._clusters = {cluster.name: cluster for cluster in config.clusters}

    def lines(self, method: bytes, target: bytes) -> Iterator[tuple[str, str]]:
        """Yield the lines, each as a label and a text."""
        yield "server", shown(self.server.name)
        service: model.APIService | None = None
        result = "goes to the cluster, which may have its own say"
        try:
            cluster, target, service = self._destination(target)
            info = requestinfo.parse(method, target)
        except StatusError as error:
            self._refuse(error.code, error.message)
        else:
            if not cluster:
                yield from self._aggregate(info, target)
                return
            if service is not None:
                yield "API service", f"{shown(service.group_version)}, whose owner comes before the backend"
            yield "cluster", shown(cluster)
            yield "request", describe(info)
            yield from self._identity(target)
            yield from self._decisions(info, target, cluster, service)
            if service is None and self.server.api_services and requestinfo.is_document(info.path):
                group_versions = ", ".join(each.group_version for each in self.server.api_services)
                result = f"answered for the cluster and API services {group_versions} together"
        yield "result", self.refusal or result

    def _decisions(
        self, info: RequestInfo, target: bytes, cluster: str, service: model.APIService | None = None
    ) -> Iterator[tuple[str, str]]:
        """Yield the decisions of policies and authorizer about the request to `cluster`, or to an API service there.

        No policy sends a request of an API service to another cluster.
        """
        policy = yield from self._policy(info, cluster)
        destination = cluster if policy is None or policy.backend is None else policy.backend.cluster
        if service is not None and policy is not None:
            own = self.server.backend.cluster if isinstance(self.server.backend, model.ClusterBackend) else ""
            if policy.backend is not None:
                yield "note", f"the backend {shown(destination)} of the policy does not count for an API service"
            endpoints = (
                policy.endpoints if service.cluster == (destination if policy.backend is not None else own) else ()
            )
            policy, destination = replace(policy, backend=None, endpoints=endpoints), service.cluster
        if policy is None:
            self._refuse(403, f"no dispatch policy of server {shown(self.server.name)} matches")
        else:
            yield from self._effects(policy, self._clusters[destination], info)
        reviewer = destination if service is None else service.authority
        for attributes in required_attributes(info, target):
            yield from self._authorization(attributes, destination, reviewer)

    def _aggregate(self, info: RequestInfo, target: bytes) -> Iterator[tuple[str, str]]:
        """Yield the lines of a request to the server's aggregate, without clusters for which it is refused."""
        backend = self.server.backend
        assert isinstance(backend, model.AggregateBackendConfig)
        aggregate = next(one for one in self.config.aggregates if one.name == backend.aggregate)
        yield "aggregate", explain_aggregate.describe_aggregate(aggregate)
        yield "request", describe(info)
        yield from self._identity(target)
        decided: dict[tuple[tuple[tuple[str, str], ...], str | None], list[str]] = {}
        for cluster in backend.clusters:
            trace = RequestTrace(self.config, self.server, self.user, aggregated=True)
            lines = [line for line in trace._decisions(info, target, cluster) if line[0] not in _OF_ENDPOINTS]
            decided.setdefault((tuple(lines), trace.refusal), []).append(cluster)
        allowed: list[str] = []
        for (alike, refusal), clusters in decided.items():
            yield "clusters", explain_aggregate.named(clusters)
            yield from alike
            if refusal is None:
                allowed += clusters
            else:
                yield "left out", refusal.removeprefix("refused: ")
        if backend.clusters and not allowed:
            self.refusal = self.refusal or next(refusal for _, refusal in decided if refusal is not None)
        answer = explain_aggregate.Answer(aggregate, allowed)
        if self.refusal is None:
            yield from answer.lines(info)
            if answer.refusal is not None:
                self._refuse(*answer.refusal)
        yield "result", self.refusal or answer.result

    def _refuse(self, code: int, message: str) -> None:
        self.refusal = self.refusal or f"refused: {code}, {message}"

    def _destination(self, target: bytes) -> tuple[str, bytes, model.APIService | None]:
        """Return the cluster of a target ("" for the server's aggregate), the target there, and its API service."""
        backend = self.server.backend
        services = Registry((service, service) for service in self.server.api_services)
        service = services.find(target)
        if service is not None:
            return service.cluster, target, service
        if isinstance(backend, model.ClusterBackend):
            return backend.cluster, target, None
        names = {name.encode() for name in backend.clusters}
        if isinstance(backend, model.AggregateBackendConfig):
            name, below = cluster_path.split_aggregate(target, names)
            service = services.find(below) if not name else None
            if service is not None:
                return service.cluster, below, service
        else:
            name, below = cluster_path.split(target, self.server.name, names)
        return name.decode(), below, None

    def _identity(self, target: bytes) -> Iterator[tuple[str, str]]:
        name = self.server.authentication
        if name is None and self.user.name != ANONYMOUS_NAME:
            yield "note", f"the server has no authentication: it does not know that the user is {shown(self.user.name)}"
            self.user = ANONYMOUS
        yield "user", f"{shown(self.user.name)}, groups {_listed(self.user.groups)}"
        found = next((one for one in self.config.authentication if one.name == name), None)
        if found is None or self.user.name != ANONYMOUS_NAME:
            return
        path, anonymous = target.partition(b"?")[0].decode(), found.anonymous
        if not anonymous.enabled or (anonymous.paths and path not in anonymous.paths):
            yield "note", f"authentication {shown(found.name)} needs a credential here; --user names the user"
            self._refuse(401, "Unauthorized")

    def _authorization(self, attributes: Attributes, cluster: str, reviewer: str) -> Iterator[tuple[str, str]]:
        """Yield the authorizer's decision about a request that its policy sends to `cluster`.

        The cluster `reviewer` reviews it if the authorizer names no cluster.
        """
        config = next((one for one in self.config.authorization if one.name == self.server.authorization), None)
        if config is None:
            yield "authorization", "none here: the cluster decides"
            return
        called, review = shown(config.name), config.subject_access_review
        verdicts: tuple[RuleVerdict, ...] = ()
        if config.rules is not None:
            verdicts = explain_rules(config.rules, self.user, attributes, cluster)
            for verdict in verdicts:
                yield "authorization", f"{called}, rules[{verdict.number}]: {verdict}"
        if verdicts and verdicts[-1].matches:
            return
        if review is not None:
            yield "authorization", f"{called}: cluster {shown(review.cluster or reviewer)} reviews it"
        else:
            yield "authorization", f"{called}: no rule allows it, and there is no review"
            self._refuse(403, f"authorization {called} does not allow it")

    def _policy(self, info: RequestInfo, cluster: str) -> Generator[tuple[str, str], None, model.Policy | None]:
        """Yield the tried policies, and return the applicable policy."""
        policies = self.server.dispatch
        if policies is None:
            yield "policy", "none: the server has no dispatch, so everything passes"
            return model.Policy(name="", rules=())
        explanation = explain_policies(policies, self.user, info, cluster)
        for line in explanation.lines():
            yield "tried", line
        yield "policy", _applies(explanation)
        return None if explanation.policy is None else policies[explanation.policy.number]

    def _effects(
        self, policy: model.Policy, cluster: model.ClusterConfig, info: RequestInfo
    ) -> Iterator[tuple[str, str]]:
        if policy.backend is not None:
            yield "backend", f"cluster {shown(cluster.name)}"
        yield "access log", "on" if self.server.access_log and policy.access_log is not False else "off"
        if policy.reject is not None:
            self._refuse(policy.reject.code, policy.reject.message)
            return
        yield from self._limits(policy.flow_control, cluster, info)
        if cluster.kubeconfig is not None:
            yield "endpoints", "that of the kubeconfig"
            return
        endpoints = [one for one in cluster.endpoints if not policy.endpoints or one.name in policy.endpoints]
        yield "endpoints", ", ".join(map(_endpoint, endpoints))
        yield "strategy", policy.strategy
        if all(one.disabled for one in endpoints):
            self._refuse(503, "every endpoint that it could go to is disabled")

    def _limits(self, named: str | None, cluster: model.ClusterConfig, info: RequestInfo) -> Iterator[tuple[str, str]]:
        """Yield the flow controls of the policy and the cluster, in the order in which they apply, each once."""
        controls = {control.name: control for control in self.config.flow_controls}
        own = () if named is None else (named,)
        for name in dict.fromkeys((*own, *cluster.flow_controls)):
            maybe = self._aggregated and name != named  # a cluster's limit counts only requests that are sent to it
            whose = "" if name == named else f", of cluster {shown(cluster.name)}"
            whose += ", for what is sent there" if maybe else ""
            yield "flow control", f"{describe_flow_control(controls[name])}{whose}"
            if _closed(controls[name], info) and not maybe:
                self._refuse(429, f"flow control {shown(name)} lets none of these through")


def _endpoint(endpoint: model.EndpointConfig) -> str:
    """Return the name of an endpoint, its tunnel unless that is the name, and whether it is disabled."""
    notes = [f"tunnel {endpoint.tunnel}"] if endpoint.tunnel is not None and endpoint.name != endpoint.url else []
    notes += ["disabled"] if endpoint.disabled else []
    return f"{endpoint.name} ({', '.join(notes)})" if notes else endpoint.name


def describe(info: RequestInfo) -> str:
    """Return the attributes of a request, in the terms of rules."""
    if not info.is_resource:
        return f"{info.verb} {shown(info.path)}, no resource"
    resource = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
    parts = [f"{info.verb or 'no verb'} {shown(resource)}, group {shown(info.group)}, version {shown(info.version)}"]
    parts.append(f"namespace {shown(info.namespace)}" if info.namespace else "no namespace")
    parts.append(f"name {shown(info.name)}" if info.name else "no name")
    parts += ["long-running"] if info.long_running else []
    return ", ".join(parts)


def describe_flow_control(control: model.FlowControl) -> str:
    """Return the name and the limits of a flow control."""
    parts: list[str] = [control.type]
    if control.type is model.FlowControlType.MAX_REQUESTS_INFLIGHT:
        parts += [] if control.max is None else [f"max {control.max}"]
        parts += [] if control.max_long_running is None else [f"maxLongRunning {control.max_long_running}"]
    elif control.type is model.FlowControlType.TOKEN_BUCKET:
        parts += [f"qps {plain_number(control.qps)}", f"burst {control.burst}"]
    parts += [f"per {control.per}"] if control.per is not model.Per.ALL else []
    parts += ["over all replicas"] if control.shared else []
    parts += [f"queue of {control.queue.size} for {control.queue.timeout:g} s"] if control.queue is not None else []
    return f"{shown(control.name)} ({', '.join(parts)})"


def _closed(control: model.FlowControl, info: RequestInfo) -> bool:
    return (control.max_long_running if info.long_running else control.max) == 0


def _applies(explanation: Explanation) -> str:
    policy, rule = explanation.policy, explanation.rule
    if policy is None or rule is None:
        return "none matches"
    return f"{title(policy.number, policy.name)}, rules[{rule.number}]"


def _listed(values: Sequence[str]) -> str:
    return ", ".join(map(shown, values)) or "none"
