"""The user that a client certificate names: the common name is the user, the organizations are its groups.

The subject may be used only if the certificate is verified (`verifier`). Source: k8s.io/apiserver
`pkg/authentication/request/x509`, CommonNameUserConversion.
"""

from __future__ import annotations

import hashlib

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.identity.authentication.system_names import authenticated
from mcproxy.kube.user import UserInfo

CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"

_UID = x509.ObjectIdentifier("1.3.6.1.4.1.57683.2")


class CertificateUser:
    """The user that a certificate names.

    `authenticated` is None if it names none; `cause` is the error then, "" if it just has no common name.
    """

    __slots__ = ("authenticated", "cause", "common_name")

    def __init__(self, common_name: str, authenticated: AuthenticatedUser | None, cause: str = "") -> None:
        self.common_name = common_name
        self.authenticated = authenticated
        self.cause = cause


def certificate_user(leaf: x509.Certificate) -> CertificateUser:
    """Parse a certificate's subject. Of several common names the last is used, as in Go.

    A name that is no text, of whatever attribute, makes the subject unreadable, as in Go (`crypto/x509` parseName):
    left out, it would be a user without one of its groups.
    """
    common_name = ""
    groups: list[str] = []
    uids: list[str] = []
    try:
        for attribute in leaf.subject:
            value = attribute.value
            if isinstance(value, bytes):
                return CertificateUser("", None, "its subject has a name that is no text")
            if attribute.oid == _UID:
                uids.append(value)
            elif attribute.oid == NameOID.COMMON_NAME:
                common_name = value
            elif attribute.oid == NameOID.ORGANIZATION_NAME and value:
                groups.append(value)
    except (ValueError, TypeError):  # TypeError: a bit string where a string belongs
        return CertificateUser("", None, "its subject cannot be read")
    if not common_name:
        return CertificateUser("", None)
    uid = uids[0] if uids else ""
    if len(uids) > 1 or (uids and not uid):
        return CertificateUser(common_name, None, "the user's UID in its subject is not exactly one string")
    identifier = "X509SHA256=" + hashlib.sha256(leaf.public_bytes(Encoding.DER)).hexdigest()
    user = UserInfo(common_name, tuple(dict.fromkeys(groups)), uid, ((CREDENTIAL_ID, (identifier,)),))
    return CertificateUser(
        common_name, AuthenticatedUser(authenticated(user), ambient=True, authenticator="clientCertificates")
    )
