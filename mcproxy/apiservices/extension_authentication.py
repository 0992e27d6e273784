"""The ConfigMap kube-system/extension-apiserver-authentication, with the backend's front proxies replaced by mcproxy's.

An API server that is based on k8s.io/apiserver reads the trusted front proxies and client CAs from this ConfigMap. So
if its kubeconfig names a server of mcproxy, it trusts mcproxy's X-Remote-* headers without further options. All other
data and the resource versions come from the backend. Pure.

Source: k8s.io/kubernetes `pkg/controlplane/controller/clusterauthenticationtrust`; k8s.io/apiserver
`pkg/server/options/authentication.go` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from mcproxy.apiservices.object_merge import UnreadableAnswer, encode
from mcproxy.config import model
from mcproxy.kube.numbers import json_float

NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
_HEADERS = {
    "requestheader-username-headers": ["X-Remote-User"],
    "requestheader-uid-headers": ["X-Remote-Uid"],
    "requestheader-group-headers": ["X-Remote-Group"],
    "requestheader-extra-headers-prefix": ["X-Remote-Extra-"],
}
_DECODER = msgspec.json.Decoder(dict[str, Any], float_hook=json_float)


def trusted(server: model.Server, config: model.Config) -> dict[str, str]:
    """Return the data that replaces the backend's: the front proxies of all API services of a server.

    The CA is the chain after the certificate in `frontProxy.certFile`. Without a chain it is the certificate itself,
    which crypto/x509 accepts as a root. The result is empty if no API service gets users in X-Remote-*.
    """
    clusters = {cluster.name: cluster for cluster in config.clusters}
    authorities: dict[str, None] = {}
    names: dict[str, None] = {}
    for owner in dict.fromkeys(service.cluster for service in server.api_services):
        cluster = clusters[owner]
        if cluster.identity is not model.UpstreamIdentity.REQUEST_HEADER or cluster.front_proxy is None:
            continue
        first, *behind = x509.load_pem_x509_certificates(cluster.front_proxy.certificate.data)
        authorities |= dict.fromkeys(each.public_bytes(Encoding.PEM).decode() for each in behind or [first])
        names |= dict.fromkeys(str(each.value) for each in first.subject.get_attributes_for_oid(NameOID.COMMON_NAME))
    if not authorities:
        return {}
    data = {"requestheader-client-ca-file": "".join(authorities), "requestheader-allowed-names": json.dumps([*names])}
    data |= {key: json.dumps(value) for key, value in _HEADERS.items()}
    certificates = next((each.client_ca for each in config.authentication if each.name == server.authentication), None)
    if certificates is not None:
        data["client-ca-file"] = certificates.data.decode("ascii", "replace")
    return data


def over(body: bytes, data: Mapping[str, str]) -> bytes:
    """Return the backend's ConfigMap, or a list with only it, with `data` merged in. Raises UnreadableAnswer."""
    document = _decoded(body)
    for found in _config_maps(document):
        _put(found, data)
    return encode(document)


def event_over(line: bytes, data: Mapping[str, str]) -> bytes:
    """Return a watch event with `data` merged into its ConfigMap; it ends with a newline. Raises UnreadableAnswer."""
    event = _decoded(line)
    found = event.get("object")
    if event.get("type") in ("ADDED", "MODIFIED", "DELETED") and isinstance(found, dict):
        _put(found, data)
    return encode(event)


def modified(body: bytes, data: Mapping[str, str], version: str) -> bytes:
    """Return the event with the ConfigMap of `body` for a client that resumes from `version`.

    The client has seen this version, but the merged data may have changed since then. Raises UnreadableAnswer.
    """
    found = _decoded(body)
    _put(found, data)
    metadata = found.get("metadata")
    if not isinstance(metadata, dict):
        raise UnreadableAnswer("an object without metadata")
    metadata["resourceVersion"] = version
    return encode({"type": "MODIFIED", "object": found})


def _config_maps(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    items = document.get("items")
    if document.get("kind") != "ConfigMapList":
        yield document
        return
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            yield item


def _put(found: dict[str, Any], data: Mapping[str, str]) -> None:
    own = found.get("data")
    found["data"] = {**(own if isinstance(own, dict) else {}), **data}


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise UnreadableAnswer("something that is not an object") from None
