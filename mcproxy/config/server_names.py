"""Checks the form of names in SNI, Host and certificates, and which names a certificate covers."""

from __future__ import annotations

import ipaddress
import re

from cryptography import x509

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_DNS_NAME = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*\Z")


def is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_server_name(name: str) -> bool:
    """Whether a lower-case name is valid as a server name: a DNS name, ``*.`` and a DNS name, or an IP address."""
    if is_ip(name):
        return True
    if len(name) > 253 or not _DNS_NAME.match(name):
        return False
    return not name.rpartition(".")[2].isdigit()


def covers(pattern: str, name: str) -> bool:
    """Whether a certificate name (exact, or a wildcard of one label) covers a server name, which can be a wildcard."""
    if pattern == name:
        return True
    head, _, rest = name.partition(".")
    return bool(rest) and head != "*" and not is_ip(name) and pattern == f"*.{rest}"


def names_in(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the server names in a certificate, in lower case, each once: valid DNS names, then addresses."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return ()
    found = [name.lower().rstrip(".") for name in names.get_values_for_type(x509.DNSName)]
    found += [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return tuple(dict.fromkeys(name for name in found if is_server_name(name)))
