"""Verifies by service_identity that a certificate is for a given DNS name or IP address (RFC 6125, RFC 9525).

An invalid name in subjectAltName (an IP address as a DNS name, a misplaced wildcard) is ignored, and other names still
count, as in Go's `Certificate.VerifyHostname`. URIs and other kinds are never compared.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

import service_identity
from cryptography import x509
from service_identity.hazmat import (
    DNS_ID,
    CertificatePattern,
    DNSPattern,
    IPAddress_ID,
    IPAddressPattern,
    verify_service_identity,
)

from mcproxy.net.causes import Cause, CauseCode
from mcproxy.net.connect_errors import TLSError


@lru_cache(1024)
def is_ip(name: str) -> bool:
    """Return whether `name` is an IP address; cached, because each connection needs it."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


@lru_cache(1024)
def plain_name(name: str) -> str:
    """Return a server's name in the form for SNI and for the comparison with a certificate.

    A DNS name loses its final dot (RFC 6066 3; Go's `hostnameInSNI`). An IPv4-mapped IPv6 address becomes the IPv4
    address (RFC 4291 2.5.5.2; Go's `net.IP.Equal`).
    """
    if is_ip(name):
        return str(_unmapped(ip_address(name)))
    return name.removesuffix(".")


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def check_name(certificate: x509.Certificate | None, name: str) -> None:
    """Raise TLSError unless the certificate's subjectAltName covers `name`, a DNS name or an IP address."""
    if certificate is None:
        raise TLSError(Cause("the server sent no certificate", CauseCode.NO_CERTIFICATE))
    name = plain_name(name)
    try:
        wanted = IPAddress_ID(name) if is_ip(name) else DNS_ID(name)
        verify_service_identity(_patterns(certificate), [wanted], [])
    except (service_identity.VerificationError, service_identity.CertificateError):
        names = certificate_names(certificate)
        cause = f"the certificate is not for {name}; it is for {', '.join(names) or 'no name'}"
        raise TLSError(Cause(cause, CauseCode.WRONG_NAME if names else CauseCode.NO_NAME)) from None
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        cause = f"the certificate cannot be checked for {name}: {error}"
        raise TLSError(Cause(cause, CauseCode.INVALID_NAMES)) from None


def _patterns(certificate: x509.Certificate) -> list[CertificatePattern]:
    """Return the valid names; raises as `certificate.extensions` does."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    found: list[CertificatePattern] = []
    for name in names.get_values_for_type(x509.DNSName):
        try:
            found.append(DNSPattern.from_bytes(name.encode()))
        except service_identity.CertificateError:
            continue
    addresses = names.get_values_for_type(x509.IPAddress)
    # Values that are networks occur only in name constraints.
    found += [IPAddressPattern(_unmapped(one)) for one in addresses if isinstance(one, IPv4Address | IPv6Address)]
    return found


def certificate_names(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names and IP addresses in subjectAltName."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
