"""The parts of EndpointSlices and Services in JSON that ingresses and exports both read.

Source: k8s.io/api `discovery/v1` and `core/v1`.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

MAX_SLICE_ENDPOINTS = 1000
"""Endpoints of one EndpointSlice: kube-apiserver accepts no more (`discovery.validation.maxEndpoints`)."""
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""To be used with `fullmatch` (RFC 1123)."""
DNS_SUBDOMAIN = re.compile(rf"{DNS_LABEL.pattern}(\.{DNS_LABEL.pattern})*")
"""As `DNS_LABEL`; names of pods have 253 characters at most."""

_T = TypeVar("_T")


class UnreadableObject(ValueError):
    """An object does not have the fields of its kind; the message is one line."""


class PortJSON(msgspec.Struct, rename="camel"):
    """A port of a Service or an EndpointSlice."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None
    app_protocol: str | None = None


class ConditionsJSON(msgspec.Struct):
    """The conditions of an endpoint."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


def decode(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
    """Return a decoded object. Raises UnreadableObject."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableObject(" ".join(str(error).split())[:200]) from None
