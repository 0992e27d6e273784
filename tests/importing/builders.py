"""Objects of KubeGateway and Karmada, and certificates for them."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any

import trustme

from mcproxy.importing.object_files import Object, objects_in


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@cache
def authority() -> trustme.CA:
    return trustme.CA()


@cache
def pair(name: str) -> tuple[bytes, bytes]:
    """Return a chain and a key, PEM, for a name."""
    made = authority().issue_cert(name)
    return made.cert_chain_pems[0].bytes(), made.private_key_pem.bytes()


def ca() -> bytes:
    return authority().cert_pem.bytes()


ANY = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}


def upstream_cluster(name: str = "east.example.com", **spec: Any) -> dict[str, Any]:
    """Return an UpstreamCluster; keys of `spec` replace those of a plain one, None takes them out."""
    serving = {"clientCAData": b64(ca()), "certData": b64(pair(name)[0]), "keyData": b64(pair(name)[1])}
    plain = {
        "servers": [{"endpoint": "https://10.0.0.1:6443"}],
        "clientConfig": {"bearerToken": b64(b"very-secret-token"), "caData": b64(ca())},
        "secureServing": serving,
        "dispatchPolicies": [{"rules": [ANY, {"verbs": ["*"], "nonResourceURLs": ["*"]}]}],
    }
    return {
        "apiVersion": "proxy.kubegateway.io/v1alpha1",
        "kind": "UpstreamCluster",
        "metadata": {"name": name},
        "spec": {**plain, **spec},
    }


def karmada_cluster(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "cluster.karmada.io/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": name, "labels": {"env": "prod" if name < "m" else "dev"}},
        "spec": {
            "syncMode": "Push",
            "apiEndpoint": "https://10.1.0.1:6443",
            "secretRef": {"namespace": "karmada-cluster", "name": name},
            **spec,
        },
    }


def karmada_secret(name: str, **data: str) -> dict[str, Any]:
    plain = {"token": b64(b"very-secret-token"), "caBundle": b64(ca())}
    metadata = {"namespace": "karmada-cluster", "name": name}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {**plain, **data}}


def registry(name: str, *selectors: dict[str, Any], **target: Any) -> dict[str, Any]:
    return {
        "apiVersion": "search.karmada.io/v1alpha1",
        "kind": "ResourceRegistry",
        "metadata": {"name": name},
        "spec": {"targetCluster": target, "resourceSelectors": list(selectors)},
    }


def one(document: dict[str, Any]) -> Object:
    return objects_in(document, "test")[0]
