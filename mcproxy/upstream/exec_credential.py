"""The exec credential plugin protocol of client-go: encoding of the input, parsing of the output.

Source: client.authentication.k8s.io v1 and v1beta1 (KEP-541; k8s.io/client-go/plugin/pkg/client/auth/exec).
Nothing here runs a process or reads a clock; times are seconds since the epoch.
"""

from __future__ import annotations

import base64
import codecs
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from mcproxy.config import model
from mcproxy.upstream.credentials import CredentialError, bearer
from mcproxy.upstream.tls import ClientCertificate

_MOST_YAML = 256 * 1024  # bytes; a token and a certificate have some thousand


@dataclass(frozen=True, slots=True)
class ExecStatus:
    """A plugin's output. `expires` is in seconds since the epoch; None: valid until it is refused."""

    header: bytes | None = field(repr=False)
    certificate: ClientCertificate | None
    expires: float | None


def exec_info(plugin: model.ExecPlugin, cluster: model.Cluster) -> str:
    """Return the value of KUBERNETES_EXEC_INFO; it describes the cluster only with provideClusterInfo."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = _cluster_info(cluster)
        if plugin.cluster_config is not None:
            spec["cluster"]["config"] = json.loads(plugin.cluster_config)
    return json.dumps({"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec})


def _cluster_info(cluster: model.Cluster) -> dict[str, Any]:
    info: dict[str, Any] = {"server": cluster.endpoints[0].url}
    if cluster.tls.server_name:
        info["tls-server-name"] = cluster.tls.server_name
    if cluster.tls.insecure_skip_verify:
        info["insecure-skip-tls-verify"] = True
    if cluster.tls.ca is not None:
        info["certificate-authority-data"] = base64.b64encode(cluster.tls.ca.data).decode()
    return info


def parse_exec_credential(output: bytes, plugin: model.ExecPlugin) -> ExecStatus:
    """Parse a plugin's output. Raises `CredentialError`, whose text never contains the output."""
    origin = f"the exec plugin {plugin.command}"
    document = _document(output, origin)
    if not isinstance(document, dict) or document.get("kind") != "ExecCredential":
        raise CredentialError(f"{origin} printed something else than an ExecCredential")
    if document.get("apiVersion") != plugin.api_version:
        raise CredentialError(f"{origin} answered in another apiVersion than the configured {plugin.api_version}")
    status = document.get("status")
    if not isinstance(status, dict):
        raise CredentialError(f"{origin} printed no status")
    token = _text(status, "token", origin)
    certificate = _certificate(status, origin)
    if not token and certificate is None:
        raise CredentialError(f"{origin} gave neither a token nor a client certificate")
    header = bearer(token, origin) if token else None
    return ExecStatus(header, certificate, _expiry(status, origin))


def _document(output: bytes, origin: str) -> Any:
    """Decode JSON, or YAML where it does not begin as an object in JSON, as client-go tells them apart."""
    try:
        if not output.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{"):
            output = _yaml_as_json(output, origin)
        return json.loads(output)
    except (ValueError, RecursionError):
        raise CredentialError(f"{origin} did not print an ExecCredential in JSON or YAML") from None


def _yaml_as_json(output: bytes, origin: str) -> bytes:
    """Raises CredentialError and ValueError."""
    import yaml  # a daemon without such a plugin, and each worker, does without a megabyte of modules

    from mcproxy.kube import yaml_nodes, yaml_to_json

    if len(output) > _MOST_YAML:
        raise CredentialError(f"{origin} printed more than {_MOST_YAML} bytes of YAML")
    try:
        return yaml_to_json.to_json(output.decode())
    except yaml_nodes.Refused as error:
        raise CredentialError(f"{origin} printed YAML that cannot be read here: {error}") from None
    except yaml.YAMLError as error:
        raise ValueError(error) from None


def _text(status: dict[str, Any], key: str, origin: str) -> str:
    value = status.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CredentialError(f"{origin}: status.{key} is not a string")
    if not value.isascii():  # tokens, PEM and times are; JSON may hold half a character
        raise CredentialError(f"{origin}: status.{key} has other characters than ASCII")
    return value


def _certificate(status: dict[str, Any], origin: str) -> ClientCertificate | None:
    chain, key = (_text(status, name, origin).encode() for name in ("clientCertificateData", "clientKeyData"))
    if not chain and not key:
        return None
    if not chain or not key:
        raise CredentialError(f"{origin} gave one of clientCertificateData and clientKeyData without the other")
    try:
        leaf = x509.load_pem_x509_certificates(chain)[0]
        private = load_pem_private_key(key, None)
        shape = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        fits = leaf.public_key().public_bytes(*shape) == private.public_key().public_bytes(*shape)
    except (ValueError, TypeError, IndexError, x509.InvalidVersion, UnsupportedAlgorithm):
        raise CredentialError(f"{origin} gave a client certificate or key that is not PEM, or encrypted") from None
    if not fits:
        raise CredentialError(f"{origin} gave a client certificate and a key that do not belong together")
    return ClientCertificate(chain, key)


def _expiry(status: dict[str, Any], origin: str) -> float | None:
    text = _text(status, "expirationTimestamp", origin)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise CredentialError(f"{origin}: status.expirationTimestamp is not a time as RFC 3339 writes it") from None
