"""The HTTP session towards an OTLP collector whose authorities are in a file, verified as clusters are.

Each certificate of the file is an anchor, one that cannot be read does not matter, and of two authorities with one name
any that verifies counts. As `spans`, this is imported only where requests are traced.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import requests
from cryptography.hazmat.primitives.serialization import Encoding
from requests.adapters import HTTPAdapter

from mcproxy.certificate_blocks import load_certificates, one_of_each_name

_FILES = ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE")


def session_to_collector(environ: Mapping[str, str]) -> requests.Session | None:
    """Return a session with the authorities that the SDK's variables name, None if they name none.

    Raises ValueError, with the file and the reason, if it holds none.
    """
    file = next((environ[name] for name in _FILES if environ.get(name)), None)
    if file is None:
        return None
    try:
        with open(file, "rb") as bundle:
            choices = one_of_each_name(load_certificates(bundle.read()))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    session = requests.Session()
    pems = ["".join(one.public_bytes(Encoding.PEM).decode() for one in choice) for choice in choices]
    session.mount("https://", _AnyOf([_Anchored(pem) for pem in pems]))
    return session


class _Anchored(HTTPAdapter):
    """Trusts the certificates of one PEM text alone, each of them as an anchor."""

    def __init__(self, pem: str) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        self._context.load_verify_locations(cadata=pem)
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, ssl_context=self._context, **options)

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        super().cert_verify(conn, url, verify, cert)
        conn.ca_certs = conn.ca_cert_dir = None  # requests' own bundle, which would be trusted beside


class _AnyOf(HTTPAdapter):
    """Takes the first of several adapters that can verify the collector; nothing is sent before that."""

    def __init__(self, adapters: list[_Anchored]) -> None:
        super().__init__()
        self._adapters = adapters

    def send(self, *args: Any, **options: Any) -> requests.Response:
        """Send one request. Raises as `HTTPAdapter.send` does."""
        options["verify"] = True
        for _ in self._adapters[1:]:
            try:
                return self._adapters[0].send(*args, **options)
            except requests.exceptions.SSLError:
                self._adapters.append(self._adapters.pop(0))
        return self._adapters[0].send(*args, **options)

    def close(self) -> None:
        """Close the connections."""
        for adapter in self._adapters:
            adapter.close()
