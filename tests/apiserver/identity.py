"""Who calls an aggregated API server, and what they may: as k8s.io/apiserver with delegated authentication and
authorization (`pkg/authentication/request/headerrequest`, `pkg/server/options/authentication.go`, `authorization.go`).
"""

from __future__ import annotations

import json
import ssl
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID

JSONDict = dict[str, Any]
ALWAYS_ALLOWED = frozenset({"/healthz", "/livez", "/readyz"})
_EXTRA = "x-remote-extra-"


@dataclass
class User:
    """A user, and how it was found out."""

    name: str
    uid: str = ""
    groups: list[str] = field(default_factory=list)
    extra: dict[str, list[str]] = field(default_factory=dict)
    by: str = ""


class FrontProxy:
    """Trusts X-Remote-* on connections with a certificate of the CA whose common name is allowed."""

    def __init__(self, ca_file: str, allowed: list[str]) -> None:
        """Without a file nobody is trusted until `trust` says who is."""
        self._authorities = x509.load_pem_x509_certificates(Path(ca_file).read_bytes()) if ca_file else []
        self._allowed = allowed

    @property
    def knows(self) -> bool:
        """Whether it trusts anybody."""
        return bool(self._authorities)

    def trust(self, data: JSONDict) -> None:
        """Trust what the ConfigMap extension-apiserver-authentication says."""
        assert json.loads(data["requestheader-username-headers"]) == ["X-Remote-User"]
        assert json.loads(data["requestheader-group-headers"]) == ["X-Remote-Group"]
        self._authorities = x509.load_pem_x509_certificates(data["requestheader-client-ca-file"].encode())
        self._allowed = json.loads(data["requestheader-allowed-names"])

    def user(self, request: web.Request) -> User | None:
        """Return the user that the front proxy names; None: it is not the front proxy, or it names nobody."""
        if not self._is_front_proxy(request):
            return None
        name = request.headers.get("X-Remote-User", "")
        if not name:
            return None
        extra: dict[str, list[str]] = {}
        for key, value in request.headers.items():
            if key.lower().startswith(_EXTRA):
                known = urllib.parse.unquote(key.lower().removeprefix(_EXTRA))
                extra.setdefault(known, []).append(value)
        uid = request.headers.get("X-Remote-Uid", "")
        return User(name, uid, request.headers.getall("X-Remote-Group", []), extra, "front proxy")

    def _is_front_proxy(self, request: web.Request) -> bool:
        tls = None if request.transport is None else request.transport.get_extra_info("ssl_object")
        der = None if tls is None else tls.getpeercert(True)
        if not der:
            return False
        certificate = x509.load_der_x509_certificate(der)
        if not any(_is_verified(certificate, each) for each in self._authorities):
            return False
        names = [str(each.value) for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        return not self._allowed or any(name in self._allowed for name in names)


def _is_verified(certificate: x509.Certificate, root: x509.Certificate) -> bool:
    """Whether crypto/x509 would verify it: a root itself, or issued by it."""
    if certificate == root:
        return True
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


class Delegate:
    """TokenReview and SubjectAccessReview at the server of a kubeconfig (in JSON), with its credential."""

    def __init__(self, kubeconfig: str) -> None:
        self._file = Path(kubeconfig)
        self._session: aiohttp.ClientSession | None = None

    async def token_user(self, token: str) -> User | None:
        """Return the user of a bearer token; None: it is not known. Raises aiohttp.ClientError."""
        status = await self._review("authentication.k8s.io", "TokenReview", {"token": token})
        if not status.get("authenticated"):
            return None
        user = status["user"]
        groups, extra = user.get("groups") or [], user.get("extra") or {}
        return User(user["username"], user.get("uid", ""), groups, extra, "token")

    async def allowed(self, user: User, attributes: JSONDict) -> tuple[bool, str]:
        """Return whether it is allowed, and the reason. Raises aiohttp.ClientError."""
        spec = {"user": user.name, "groups": user.groups, "uid": user.uid, "extra": user.extra, **attributes}
        status = await self._review("authorization.k8s.io", "SubjectAccessReview", spec)
        return bool(status.get("allowed")) and not status.get("denied"), str(status.get("reason", ""))

    async def front_proxies(self) -> JSONDict:
        """Return the data of the ConfigMap extension-apiserver-authentication. Raises aiohttp.ClientError."""
        path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
        session, server, headers = self._connected()
        async with session.get(server + path, headers=headers) as answer:
            document = await answer.json()
            if answer.status != 200:
                raise aiohttp.ClientError(f"{path}: {answer.status} {document.get('message')}")
        return dict(document["data"])

    def _connected(self) -> tuple[aiohttp.ClientSession, str, dict[str, str]]:
        config = json.loads(self._file.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        if self._session is None:
            context = ssl.create_default_context(cafile=cluster["certificate-authority"])
            connector = aiohttp.TCPConnector(ssl=context)
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(10))
        return self._session, cluster["server"], {"Authorization": f"Bearer {user['token']}"}

    async def _review(self, group: str, kind: str, spec: JSONDict) -> JSONDict:
        session, server, headers = self._connected()
        url = f"{server}/apis/{group}/v1/{kind.lower()}s"
        body = {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
        async with session.post(url, json=body, headers=headers) as answer:
            document = await answer.json()
            if answer.status != 201:
                raise aiohttp.ClientError(f"{kind}: {answer.status} {document.get('message')}")
        return dict(document["status"])

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
