"""Finds the API service of a server that a request target belongs to. Pure.

A group-version has one owner. So this module, the owner's API server, and `kube.requestinfo` (which determines the
group to authorize) must find the same group-version in a target. As in `kube.requestinfo`, percent-encoded segments are
decoded, and paths are case-sensitive. Paths that two parsers could read differently (dot segments, empty segments,
encoded slashes, an encoded `/apis`) belong to no API service, and `kube.requestinfo` refuses them with 400.

Source of the paths: kube-aggregator `pkg/apiserver/apiserver.go` (AddAPIService): /apis/GROUP/VERSION and all below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

from mcproxy.config.model import APIService

T = TypeVar("T")

_GROUP_VERSION = re.compile(rb"/apis/([^/?]+/[^/?]+)")
_PERCENT = ord("%")


class Registry(Generic[T]):
    """The values of the API services of one server, by target."""

    __slots__ = ("_by_group_version",)

    def __init__(self, services: Iterable[tuple[APIService, T]]) -> None:
        self._by_group_version = {service.group_version.encode(): known for service, known in services}

    def find(self, target: bytes) -> T | None:
        """Return the value of the API service that serves a target (in origin-form); None: the backend serves it."""
        match = _GROUP_VERSION.match(target)
        if match is None:
            return None
        group_version = match[1]
        if _PERCENT in group_version:
            group_version = unquote_to_bytes(group_version)
        return self._by_group_version.get(group_version)
