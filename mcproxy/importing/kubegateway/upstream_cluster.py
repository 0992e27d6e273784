"""Translates an UpstreamCluster to a cluster, a server with its policies, and the other entries that they need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mcproxy.config.server_names import is_ip, is_server_name
from mcproxy.config.urls import AddressError, parse_endpoint
from mcproxy.importing.fragment import FileName, Fragment, Note, is_cluster_name
from mcproxy.importing.kubegateway.policies import ALL_REQUESTS, ImportedFlowControls, Policies, RejectAnswer
from mcproxy.importing.kubegateway.policy_rules import Mode
from mcproxy.importing.object_files import Fields, Object, UnusableError

GROUP = "proxy.kubegateway.io"
VERSION = "v1alpha1"
KIND = "UpstreamCluster"
PLURAL = "upstreamclusters"
LISTENER = "kubegateway"
_OWN = "kubegateway_own"
"""The name of the gateway's own certificate, which no cluster can have."""

_SPEC = ("servers", "clientConfig", "secureServing", "flowControl", "dispatchPolicies", "logging")
_CLIENT = (
    "insecure", "bearerToken", "keyData", "certData", "caData", "qps", "burst", "qpsDivisor", "serverName",
)  # fmt: skip
_FEATURE_GATES = "proxy.kubegateway.io/feature-gates"
_LOCAL = ("127.", "[::1]:", "unix:")
_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))  # strconv.ParseBool


@dataclass(frozen=True, slots=True)
class KubeGatewayOptions:
    """The settings that are in the flags of the kube-gateway processes instead of the objects."""

    bind: str = "0.0.0.0:6443"
    certificate: tuple[bytes, bytes] | None = None
    """PEM of the chain and the key for clusters without a serving certificate."""
    client_ca: bytes = b""
    """PEM of the authorities for clusters without clientCAData."""
    mode: Mode | None = None
    """The mode for inverted lists; None: chosen for each policy (`policies.Policies`)."""


def translate(found: Object, options: KubeGatewayOptions) -> Fragment:
    """Return the fragment for an UpstreamCluster. Raises UnusableError if it cannot be used."""
    return _Translator(found, options).fragment()


def listener(fragments: Sequence[Fragment], options: KubeGatewayOptions) -> Fragment:
    """Return the listener for all servers, with all their certificates."""
    made = Fragment(f"listener {LISTENER}")
    names = [entry["name"] for each in fragments for entry in each.sections.get("certificates", ())]
    if options.certificate is not None:
        chain, key = options.certificate
        made.files |= {"gateway.crt": chain, "gateway.key": key}
        certificate = {"name": _OWN, "certFile": FileName("gateway.crt"), "keyFile": FileName("gateway.key")}
        made.add("certificates", certificate)
        names.insert(0, _OWN)
    entry: dict[str, Any] = {"name": LISTENER, "serves": "API", "bind": options.bind}
    if names:
        entry["tls"] = {"certificates": names}
    elif not options.bind.startswith(_LOCAL):
        entry["bind"] = "127.0.0.1:6443"
        made.note("", f"is on {entry['bind']}: there is no certificate for {options.bind}; see --certificate")
    made.add("listeners", entry)
    return made


class _Translator:
    """Makes the fragment of one object."""

    def __init__(self, found: Object, options: KubeGatewayOptions) -> None:
        self._object = found
        self._options = options
        self._made = Fragment(f"{KIND} {found.name[:100]}")
        self._name = found.name.lower()

    def fragment(self) -> Fragment:
        if self._object.api_version != f"{GROUP}/{VERSION}":
            raise UnusableError(f"apiVersion: {self._object.api_version} is not known; {GROUP}/{VERSION} is")
        if not is_cluster_name(self._name):
            raise UnusableError("metadata.name: is no DNS name, so it cannot be the name of a cluster")
        spec = self._object.fields.fields("spec")
        for other in spec.others(*_SPEC):
            self._made.note(other, "is not known to mcproxy")
        endpoints = self._cluster(spec)
        self._server(spec, endpoints)
        return self._made

    # -- the cluster ----------------------------------------------------------------------------------------------

    def _cluster(self, spec: Fields) -> dict[str, str]:
        """Add the cluster; return the names of its endpoints by their URLs in spec.servers."""
        entries, names = self._endpoints(spec)
        client = spec.fields("clientConfig")
        for other in client.others(*_CLIENT):
            self._made.note(other, "is not known to mcproxy")
        cluster: dict[str, Any] = {"name": self._name, "endpoints": entries}
        if entries[0]["url"].startswith("https:"):
            cluster["tls"] = self._tls(client)
        cluster["credentials"] = self._credentials(client)
        if client.integer("qps"):
            self._made.note(client.at("qps"), "is not carried over: it limited the gateway's own requests")
        self._made.add("clusters", cluster)
        return names

    def _endpoints(self, spec: Fields) -> tuple[list[dict[str, Any]], dict[str, str]]:
        entries: dict[str, dict[str, Any]] = {}
        names: dict[str, str] = {}
        for server in spec.items("servers"):
            for other in server.others("endpoint", "disabled"):
                self._made.note(other, "is not known to mcproxy")
            text = server.text("endpoint")
            try:
                endpoint = parse_endpoint(text)
            except AddressError as error:
                raise UnusableError(f"{server.at('endpoint')}: {error.what}") from None
            if endpoint.path:
                what = f'the path "{endpoint.path}" is left out: KubeGateway forwards to the host alone'
                self._made.note(server.at("endpoint"), what)
            url = endpoint.url.removesuffix(endpoint.path)
            entry = entries.setdefault(url, {"name": f"endpoint-{len(entries) + 1}", "url": url})
            if server.boolean("disabled"):
                entry["disabled"] = True
            names[text] = entry["name"]
        if not entries:
            raise UnusableError("spec.servers: has no servers")
        if len({url.partition(":")[0] for url in entries}) > 1:
            raise UnusableError("spec.servers: are of http and https; KubeGateway wants one of them")
        return list(entries.values()), names

    def _tls(self, client: Fields) -> dict[str, Any]:
        tls: dict[str, Any] = {"serverName": client.text("serverName").lower() or self._name}
        authorities = client.data("caData")
        if authorities:
            tls["caFile"] = self._made.file(self._name, "ca.crt", authorities)
        if client.boolean("insecure"):
            if authorities:
                self._made.note(client.at("insecure"), "is left out beside caData: the certificate is verified")
            else:
                tls["insecureSkipVerify"] = True
                what = "INSECURE: carried over: the certificates of the API servers are not verified at all"
                self._made.note(client.at("insecure"), what)
        elif not authorities:
            self._made.note(client.at("caData"), "is missing: the authorities of the system are trusted")
        return tls

    def _credentials(self, client: Fields) -> dict[str, Any]:
        credentials: dict[str, Any] = {}
        token, certificate, key = client.data("bearerToken"), client.data("certData"), client.data("keyData")
        if token:
            credentials["tokenFile"] = self._made.file(self._name, "token", token)
        if bool(certificate) != bool(key):
            raise UnusableError(f"{client.path}: has one of certData and keyData; they belong together")
        if certificate:
            credentials["certFile"] = self._made.file(self._name, "client.crt", certificate)
            credentials["keyFile"] = self._made.file(self._name, "client.key", key)
        return credentials

    # -- the server -----------------------------------------------------------------------------------------------

    def _server(self, spec: Fields, endpoints: dict[str, str]) -> None:
        serving = spec.fields("secureServing")
        for other in serving.others("keyData", "certData", "clientCAData", "serverNames"):
            self._made.note(other, "is not known to mcproxy")
        names = self._server_names(serving)
        self._certificate(serving, names)
        self._authentication(serving)
        logging = self._log_mode(spec)
        controls = ImportedFlowControls(self._made, self._name)
        controls.translate(spec)
        policies = Policies(self._made, endpoints, controls, logging, self._options.mode).translate(spec)
        controls.leave_out_unused({policy["flowControl"] for policy in policies if "flowControl" in policy})
        denied = self._denied()
        if denied is not None:
            policies = [denied.policy("deny-all-requests", [dict(rule) for rule in ALL_REQUESTS]), *policies]
        self._made.add(
            "servers",
            {
                "name": self._name,
                "listeners": [LISTENER],
                "serverNames": names,
                "backend": {"cluster": self._name},
                "authentication": self._name,
                "accessLog": logging != "off",
                "dispatch": policies,
            },
        )

    def _server_names(self, serving: Fields) -> list[str]:
        """Return the exact server names for requests to the cluster: the cluster's name and serverNames."""
        found: dict[str, None] = {}
        given = [("metadata.name", self._name), *((serving.at("serverNames"), n) for n in serving.texts("serverNames"))]
        for where, written in given:
            name = written.lower()
            if not is_server_name(name) or is_ip(name) or name.startswith("*"):
                self._made.note(where, f'"{name}" is left out: KubeGateway finds a cluster by an exact DNS name only')
            else:
                found[name] = None
        if not found:
            raise UnusableError("has no server name: neither metadata.name nor spec.secureServing.serverNames is one")
        return list(found)

    def _certificate(self, serving: Fields, names: list[str]) -> None:
        certificate, key = serving.data("certData"), serving.data("keyData")
        if bool(certificate) != bool(key):
            raise UnusableError(f"{serving.path}: has one of certData and keyData; they belong together")
        if certificate:
            entry = {
                "name": self._name,
                "certFile": self._made.file(self._name, "serving.crt", certificate),
                "keyFile": self._made.file(self._name, "serving.key", key),
                "serverNames": names,
            }
            self._made.add("certificates", entry)
        elif self._options.certificate is None:
            what = "is missing: name the gateway's own certificate with --certificate"
            self._made.note(serving.at("certData"), what)

    def _authentication(self, serving: Fields) -> None:
        """Add the authenticators that KubeGateway uses for every cluster: client certificates and TokenReview."""
        authorities = serving.data("clientCAData") or self._options.client_ca
        entry: dict[str, Any] = {"name": self._name}
        if authorities:
            entry["clientCertificates"] = {"caFile": self._made.file(self._name, "clients-ca.crt", authorities)}
        else:
            what = "is missing: client certificates are not accepted, unless --client-ca names the gateway's own"
            self._made.note(serving.at("clientCAData"), what)
        entry["tokenReview"] = {"cluster": self._name}
        self._made.add("authentication", entry)

    def _log_mode(self, spec: Fields) -> str:
        logging = spec.fields("logging")
        for other in logging.others("mode"):
            self._made.note(other, "is not known to mcproxy")
        mode = logging.text("mode")
        if mode not in ("", "on", "off"):
            raise UnusableError(f"{logging.at('mode')}: is neither on nor off")
        return mode

    def _denied(self) -> RejectAnswer | None:
        """Return the refusal if the feature gate DenyAllRequests is on; report the other gates."""
        annotations = self._object.fields.fields("metadata").fields("annotations")
        written = annotations.text(_FEATURE_GATES)
        gates: dict[str, str] = {}
        for part in filter(None, written.split(",")):
            name, _, value = part.strip().partition("=")
            gates[name.strip()] = value.strip()
        where = f"metadata.annotations[{_FEATURE_GATES}]"
        for name in gates:
            if name not in ("DenyAllRequests", "AllAlpha"):
                self._made.note(where, f"{re.sub(r'[^A-Za-z]', '?', name)[:40]} is not carried over")
        wanted = gates.get("DenyAllRequests", gates.get("AllAlpha", "false"))
        if wanted not in _TRUE and wanted in ("0", "f", "F", "FALSE", "false", "False"):
            return None
        self._made.note(where, "DenyAllRequests: every request is refused; take the first policy out to serve again")
        return RejectAnswer(429, "all requests are denied")


# -- all UpstreamClusters of the input --------------------------------------------------------------------------------


def translate_all(objects: Iterable[Object], options: KubeGatewayOptions) -> tuple[list[Fragment], list[Note]]:
    """Return a fragment for each UpstreamCluster, and notes on omissions (other kinds and unusable objects).

    Raises UnusableError if there is no UpstreamCluster.
    """
    fragments: dict[str, Fragment] = {}
    left_out: list[Note] = []
    for found in objects:
        origin = f"{found.kind} {found.name}"[:150]
        if found.kind != KIND or found.api_version.partition("/")[0] != GROUP:
            left_out.append(Note(origin, "", "left out: it is no UpstreamCluster"))
            continue
        name = found.name.lower()
        if name in fragments:
            left_out.append(Note(origin, "", "left out: there is another of this name before it"))
            continue
        try:
            fragments[name] = translate(found, options)
        except UnusableError as error:
            left_out.append(Note(origin, "", f"left out: {error}"))
    if not fragments and not left_out:
        raise UnusableError("there is no UpstreamCluster in what was read")
    return list(fragments.values()), left_out
