"""The 410 of a resource version from which nothing can be read or resumed any more."""

from __future__ import annotations

from mcproxy.kube.status import StatusError


class Expired(StatusError):
    """410: the client must list again."""

    def __init__(self, message: str = "The resourceVersion for the provided watch is too old.") -> None:
        super().__init__(410, message, reason="Expired")
