"""Reads kubeconfigs by the rules of client-go (tools/clientcmd).

The `kubernetes` package needs 35 MiB and 0.2 s for this, so only a test uses it, for comparison. The rules: tokenFile
has precedence over token, and a token or password over an exec plugin. A user can have a token or a password, but not
both. A value can be given as data or as a file, but not as both. File names are relative to the kubeconfig. Unknown
keys are ignored, as by kubectl. Unsupported keys (auth-provider, impersonation, an exec plugin that must prompt its
user, a proxy-url of another scheme than http) are errors. Errors are reported at line and column of the kubeconfig.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import os
from dataclasses import dataclass

from mcproxy.config import credential_checks
from mcproxy.config.files import pem
from mcproxy.config.model import (
    ClusterTLS,
    Credentials,
    EndpointConfig,
    ExecPlugin,
    HTTPProxy,
    KubeconfigReference,
    PEMFile,
    Secret,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Document, Mapping, Node, Place, Scalar, Sequence, root_place
from mcproxy.config.reading.yaml_text import read_yaml
from mcproxy.config.server_names import is_server_name
from mcproxy.config.suggestions import suggest
from mcproxy.config.urls import AddressError, is_loopback, parse_endpoint, parse_http_proxy

_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"
_IMPERSONATION = ("as", "as-uid", "as-groups", "as-user-extra")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Endpoints, TLS, credentials and HTTP proxy of a cluster. Endpoints are empty if they are invalid (reported)."""

    endpoints: tuple[EndpointConfig, ...]
    tls: ClusterTLS
    credentials: Credentials
    proxy: HTTPProxy | None = None
    kubeconfig: KubeconfigReference | None = None

    def stays_here(self, endpoint: EndpointConfig) -> bool:
        """Whether connections to an endpoint certainly do not leave this machine."""
        return self.proxy is None and is_loopback(endpoint.host)


def read_access(context: Context, reference: Place) -> Access | None:
    """Read the file and context that a cluster's `kubeconfig` names; None if they are not found (reported)."""
    file = reference.get("file")
    if file is None:
        return _assumed("", "") if context.offline and reference.has("file") else None
    return read_context(context, file, reference.get("context"), reference)


def read_context(context: Context, file: Place, wanted: Place | None, reference: Place) -> Access | None:
    """Read the context `wanted` (None: the current one) of the kubeconfig `file`; errors are reported at `reference`.

    None if file or context are not found (reported). Offline, the result has an assumed endpoint and credentials.
    """
    if context.offline:
        return _assumed(context.path(file) or "", (wanted.string if wanted is not None else None) or "")
    document, path = _document(context, file), context.path(file)
    if document is None or path is None:
        return None
    reader = _Reader(context)
    root = root_place(document)
    name = wanted.string if wanted is not None else reader.text(root, "current-context")
    if not name:
        right = "set it there" if reference is file else "set it there, or name a context here"
        context.error(reference, f"{path} has no current-context", right)
        return None
    found = reader.named(root, "contexts", name)
    if found is None:
        what = f"{path} has no context {name}"
        context.error(wanted or reference, what, suggest(name, reader.names(root, "contexts")))
        return None
    access = reader.access(root, found)
    if access is not None and _has_secrets(access):
        context.check_private(file, path)
    return dataclasses.replace(access, kubeconfig=KubeconfigReference(path, name)) if access is not None else None


def _has_secrets(access: Access) -> bool:
    """Whether the kubeconfig itself contains secrets."""
    found, proxy = access.credentials, access.proxy
    embedded_key = found.key is not None and "#" in found.key.path
    proxy_password = proxy is not None and proxy.password is not None
    return found.token is not None or found.basic is not None or embedded_key or proxy_password


def _assumed(path: str, context: str) -> Access:
    return Access(
        endpoints=(parse_endpoint("https://kubeconfig.invalid"),),
        tls=ClusterTLS(),
        credentials=Credentials(token=Secret("")),
        kubeconfig=KubeconfigReference(path, context),
    )


def _document(context: Context, file: Place) -> Document | None:
    """Return the parsed kubeconfig. A file that many clusters name is read, and its errors reported, once."""
    found = context.read(file)
    if found is None:
        return None
    path, data = found
    if path not in context.kubeconfigs:
        node = read_yaml(path, data, context.problems)
        document = None
        if isinstance(node, Mapping):
            document = Document(path, os.path.dirname(path), node)
            _check_kind(context, root_place(document))
        elif node is not None:
            context.error(file, f"{path} is not a kubeconfig", "name a file with clusters, users and contexts")
        context.kubeconfigs[path] = document
    return context.kubeconfigs[path]


def _check_kind(context: Context, root: Place) -> None:
    for key, right in (("kind", "Config"), ("apiVersion", "v1")):
        place = root.get(key)
        if place is not None and place.value != right:
            context.error(place, f"{place.shown} is not a kubeconfig's {key}", f"write {key}: {right}")


@dataclass(frozen=True, slots=True)
class _Reader:
    context: Context

    # -- values ---------------------------------------------------------------------------------------------------

    def text(self, place: Place, key: str) -> str | None:
        """Return a string, or None if it is empty, as in client-go."""
        found = place.get(key)
        if found is None or found.string is not None:
            return (found.string or None) if found is not None else None
        right = "write it in quotes" if isinstance(found.node, Scalar) else "write a string"
        self.context.error(found, "is not a string", right)  # the value is not shown, because it can be a token
        return None

    def boolean(self, place: Place, key: str) -> bool:
        found = place.get(key)
        if found is not None and not isinstance(found.value, bool):
            self.context.error(found, "is neither true nor false", "write true or false")
        return found is not None and found.value is True

    def names(self, root: Place, section: str) -> list[str]:
        return [name for entry in root.children(section) if (name := entry.text("name")) is not None]

    def named(self, root: Place, section: str, name: str) -> Place | None:
        """Return the entry with a name; two entries with one name are an error, as in client-go."""
        entries = [entry for entry in root.children(section) if entry.text("name") == name]
        if len(entries) > 1:
            what = f'the name "{name}" is taken already, at {entries[0].mark}'
            self.context.error(entries[1], what, "keep one of the two")
        return entries[0] if entries else None

    def pem(self, place: Place, key: str) -> tuple[Place, PEMFile] | None:
        """Return the contents from `key` (the name of a file) or `key`-data (base64), and the place of that key."""
        file, data = place.get(key), place.get(f"{key}-data")
        if file is not None and file.string == "":
            file = None
        if data is not None and data.string == "":
            data = None
        if file is not None and data is not None:
            self.context.error(data, f"is given in addition to {key}", "keep one of the two")
        if data is not None:
            embedded = self._embedded(data)
            return (data, embedded) if embedded is not None else None
        if file is None or self.text(place, key) is None:
            return None
        read = pem.read_file(self.context, file)
        return (file, read) if read is not None else None

    def _embedded(self, place: Place) -> PEMFile | None:
        try:
            data = base64.b64decode("".join((place.string or "?").split()), validate=True)
        except (binascii.Error, ValueError):
            self.context.error(place, "is not base64", "encode the PEM text with base64")
            return None
        return PEMFile(f"{place.document.file}#{place.key}", data)

    # -- parts ----------------------------------------------------------------------------------------------------

    def access(self, root: Place, context_entry: Place) -> Access | None:
        chosen = context_entry.get("context")
        if chosen is None:
            self.context.error(context_entry, "has no context", "add context: {cluster: …, user: …}")
            return None
        cluster = self._referenced(root, chosen, "cluster", required=True)
        user = self._referenced(root, chosen, "user", required=False)
        if cluster is None:
            return None
        ca = self.pem(cluster, "certificate-authority")
        user_credentials = self._credentials(user, cluster) if user is not None else Credentials()
        return Access(
            endpoints=self._endpoints(cluster, secure=ca is not None or user_credentials.certificate is not None),
            tls=self._tls(cluster, ca),
            credentials=user_credentials,
            proxy=self._proxy(cluster),
        )

    def _referenced(self, root: Place, chosen: Place, kind: str, *, required: bool) -> Place | None:
        name = self.text(chosen, kind)
        if name is None:
            if required:
                self.context.error(chosen, f"names no {kind}", f"add {kind}: NAME")
            return None
        entry = self.named(root, f"{kind}s", name)
        body = entry.get(kind) if entry is not None else None
        if entry is None:
            where = chosen.get(kind) or chosen
            what = f'there is no {kind} "{name}"'
            self.context.error(where, what, suggest(name, self.names(root, f"{kind}s")))
        elif body is None and required:
            self.context.error(entry, f"has no {kind}", f"add {kind}: {{…}}")
        return body

    def _endpoints(self, cluster: Place, *, secure: bool) -> tuple[EndpointConfig, ...]:
        url = self.text(cluster, "server")
        if url is None:
            self.context.error(cluster, "has no server", "add server: https://HOST:PORT")
            return ()
        if "://" not in url:  # client-go's DefaultServerURL does the same
            url = ("https://" if secure or self.boolean(cluster, "insecure-skip-tls-verify") else "http://") + url
        try:
            return (parse_endpoint(url),)
        except AddressError as error:
            self.context.error(cluster.get("server") or cluster, error.what, error.right)
            return ()

    def _proxy(self, cluster: Place) -> HTTPProxy | None:
        """Return the HTTP proxy of proxy-url; its port is 80 by default, as in Go (net/http)."""
        url, place = self.text(cluster, "proxy-url"), cluster.get("proxy-url")
        if url is None or place is None:
            return None
        try:
            return parse_http_proxy(url, default_port=80)
        except AddressError as error:
            self.context.error(place, error.what, error.right)
            return None

    def _tls(self, cluster: Place, ca: tuple[Place, PEMFile] | None) -> ClusterTLS:
        if ca is not None:
            pem.authorities(self.context, *ca)
        insecure = cluster.get("insecure-skip-tls-verify")
        bundle = ca[1] if ca is not None else None
        credential_checks.check_verification(self.context, insecure, bundle, "certificate-authority")
        name = self.text(cluster, "tls-server-name")
        if name is not None:
            name = name.lower().rstrip(".")
            if not is_server_name(name) or name.startswith("*"):
                place = cluster.get("tls-server-name") or cluster
                what = f"{place.shown} is not a name that a certificate could have"
                self.context.error(place, what, "write a DNS name or an IP address")
        skip = self.boolean(cluster, "insecure-skip-tls-verify")
        return ClusterTLS(ca=bundle, server_name=name, insecure_skip_verify=skip)

    def _credentials(self, user: Place, cluster: Place) -> Credentials:
        self._refused(user)
        certificate, key = self._client_certificate(user)
        token, token_file = self._token(user)
        name, password = self.text(user, "username"), self.text(user, "password")
        basic = (name or "", Secret(password or "")) if name is not None or password is not None else None
        has_token = token is not None or token_file is not None
        if basic is not None and has_token:
            self.context.error(user, "has a token and a user name or password", "keep one of the two")
        plugin = user.get("exec")
        made = self._exec(plugin, cluster) if plugin is not None else None
        return Credentials(
            token=Secret(token) if token is not None else None,
            token_file=token_file,
            basic=None if has_token else basic,
            certificate=certificate,
            key=key,
            exec=None if has_token or basic is not None else made,
        )

    def _refused(self, user: Place) -> None:
        provider = user.get("auth-provider")
        if provider is not None:
            self.context.error(provider, "is not supported", "use an exec plugin")
        for key in _IMPERSONATION:
            place = user.get(key)
            if place is not None and place.string != "":
                what = "impersonation in a kubeconfig is not supported"
                self.context.error(place, what, "take it out: the proxy uses its own identity towards the cluster")

    def _token(self, user: Place) -> tuple[str | None, str | None]:
        """Return token and token file, at most one of them: the file has precedence, as in client-go."""
        file = user.get("tokenFile")
        if file is not None and self.text(user, "tokenFile") is not None:
            return None, credential_checks.token_file(self.context, file)
        token, place = self.text(user, "token"), user.get("token")
        if token is not None and place is not None:
            credential_checks.check_token(self.context, place, token)
        return token, None

    def _client_certificate(self, user: Place) -> tuple[PEMFile | None, PEMFile | None]:
        certificate, key = self.pem(user, "client-certificate"), self.pem(user, "client-key")
        has_certificate = _given(user, "client-certificate")
        has_key = _given(user, "client-key")
        if has_certificate and not has_key:
            self.context.error(user, "has a client certificate without its key", "add client-key or client-key-data")
        elif has_key and not has_certificate:
            what = "has a client key without its certificate"
            self.context.error(user, what, "add client-certificate or client-certificate-data")
        if certificate is None or key is None:
            return None, None
        pem.pair(self.context, *certificate, *key)
        return certificate[1], key[1]

    # -- exec plugins ---------------------------------------------------------------------------------------------

    def _exec(self, place: Place, cluster: Place) -> ExecPlugin | None:
        version = self.text(place, "apiVersion")
        if version not in _EXEC_VERSIONS:
            where = place.get("apiVersion") or place
            what = f"{where.shown} is not supported" if version else "has no apiVersion"
            self.context.error(where, what, f"write apiVersion: {_EXEC_VERSIONS[0]}, if the plugin speaks it")
        self._interactive_mode(place, version)
        command = place.get("command")
        if command is None or self.text(place, "command") is None:
            self.context.error(place, "has no command", "add command: PROGRAM")
            return None
        hint = self.text(place, "installHint") or ""
        found = credential_checks.command(self.context, command, hint)
        provide = self.boolean(place, "provideClusterInfo")
        if found is None:
            return None
        return ExecPlugin(
            command=found,
            args=tuple(self._args(place)),
            env=tuple(self._env(place)),
            api_version=version or _EXEC_VERSIONS[0],
            provide_cluster_info=provide,
            install_hint=hint,
            cluster_config=self._cluster_config(cluster) if provide else None,
        )

    def _interactive_mode(self, place: Place, version: str | None) -> None:
        mode, where = self.text(place, "interactiveMode"), place.get("interactiveMode")
        if mode == "Always":
            what = "Always: the plugin must ask its user, and a daemon has none"
            self.context.error(where or place, what, "use a plugin that can do with interactiveMode: Never")
        elif mode not in (None, "Never", "IfAvailable"):
            what = f"{mode} is not known"
            self.context.error(where or place, what, "write Never or IfAvailable")
        elif mode is None and version == _EXEC_VERSIONS[0]:
            self.context.error(place, "has no interactiveMode", "add interactiveMode: Never")

    def _args(self, place: Place) -> list[str]:
        args = list(place.children("args"))
        for arg in args:
            if arg.string is None:
                self.context.error(arg, "is not a string", "write it in quotes")
        return [arg.string or "" for arg in args]

    def _env(self, place: Place) -> list[tuple[str, str]]:
        found = []
        for entry in place.children("env"):
            name = self.text(entry, "name")
            if name is None:
                self.context.error(entry, "has no name", "write {name: NAME, value: VALUE}")
            else:
                found.append((name, self.text(entry, "value") or ""))
        return found

    def _cluster_config(self, cluster: Place) -> str | None:
        """Return, as JSON, the extension that a plugin gets as spec.cluster.config (KEP-541)."""
        for entry in cluster.children("extensions"):
            extension = entry.get("extension")
            if entry.text("name") == _EXEC_EXTENSION and extension is not None:
                return json.dumps(_plain(extension.node), separators=(",", ":"))
        return None


def _given(place: Place, key: str) -> bool:
    return any((found := place.get(name)) is not None and found.string != "" for name in (key, f"{key}-data"))


def _plain(node: Node) -> object:
    if isinstance(node, Mapping):
        return {name: _plain(entry.node) for name, entry in node.entries.items()}
    if isinstance(node, Sequence):
        return [_plain(item) for item in node.items]
    return node.value
