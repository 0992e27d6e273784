"""Values that parts of several sections are made of."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

IPNetwork = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a configuration file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Secret:
    """A string that never shows itself: not in repr, str, a dump or a traceback's locals."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret itself; call it only where it goes onto the wire."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


class ReviewVersion(enum.StrEnum):
    """The version of the API that reviews are sent in; answers in either are taken."""

    V1 = "v1"
    V1BETA1 = "v1beta1"  # what kube-apiserver asks webhooks in by default


@dataclass(frozen=True, slots=True)
class PEMFile:
    """A PEM file as it was when the configuration was loaded, or when it was replaced on disk since.

    `path` is absolute, or the place of embedded data (``east.kubeconfig#users[0]``); `data` may be a key, so repr
    leaves it out.
    """

    path: str
    data: bytes = field(repr=False)
