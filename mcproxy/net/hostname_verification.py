"""Verification that a certificate is for a given DNS name or IP address (RFC 6125), by service_identity."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address

import service_identity
from cryptography import x509
from service_identity.cryptography import verify_certificate_hostname, verify_certificate_ip_address

from mcproxy.net.connect_errors import TLSError


@lru_cache(1024)
def is_ip(name: str) -> bool:
    """Return whether `name` is an IP address; known names are not parsed again, since each connection asks."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def check_name(certificate: x509.Certificate | None, name: str) -> None:
    """Raise TLSError unless the certificate's subjectAltName covers `name`, a DNS name or an IP address."""
    if certificate is None:
        raise TLSError("the server sent no certificate")
    try:
        if is_ip(name):
            verify_certificate_ip_address(certificate, name)
        else:
            verify_certificate_hostname(certificate, name)
    except service_identity.VerificationError:
        names = certificate_names(certificate)
        raise TLSError(f"the certificate is not for {name}; it is for {', '.join(names) or 'no name'}") from None
    except (service_identity.CertificateError, ValueError) as error:
        raise TLSError(f"the certificate cannot be checked for {name}: {error}") from None


def certificate_names(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names and IP addresses in subjectAltName."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
