"""The section `certificates`."""

from __future__ import annotations

from mcproxy.config.files import pem
from mcproxy.config.model import Certificate
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import Merged, Named, build_all, server_names
from mcproxy.config.server_names import covers, names_in


def build_certificates(context: Context, merged: Merged) -> list[Named[Certificate]]:
    return build_all(context, merged, "certificates", _certificate)


def _certificate(context: Context, place: Place) -> Certificate | None:
    cert_place, key_place = place.get("certFile"), place.get("keyFile")
    written = place.get("serverNames")
    names = server_names(context, written) if written is not None else None
    chain = pem.read_file(context, cert_place) if cert_place is not None else None
    key = pem.read_key(context, key_place) if key_place is not None else None
    name = place.text("name")
    if chain is None or key is None or cert_place is None or key_place is None:
        return None
    if context.offline:
        return Certificate(name=name, chain=chain, key=key, server_names=names or ()) if name is not None else None
    leaf = pem.pair(context, cert_place, chain, key_place, key)
    if leaf is None or name is None:
        return None
    if not pem.is_for_servers(leaf):
        what = f"the certificate in {chain.path} is for clients only (extendedKeyUsage)"
        context.warn(cert_place, "certificate-usage", what, "clients will refuse it; make one with serverAuth")
    in_certificate = names_in(leaf)
    if names is None and not in_certificate:
        what = f"the certificate in {chain.path} has no server names"
        context.warn(cert_place, "certificate-names", what, "clients will refuse it; make one with subjectAltName")
    for server_name in names or ():
        if written is not None and not any(covers(pattern, server_name) for pattern in in_certificate):
            what = f"the certificate in {chain.path} does not cover {server_name}"
            context.warn(
                written, "certificate-names", what, f"it is for {', '.join(in_certificate) or 'no name at all'}"
            )
    return Certificate(name=name, chain=chain, key=key, server_names=in_certificate if names is None else names)
