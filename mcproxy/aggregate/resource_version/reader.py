"""Reading of the resource versions that clients send to an aggregate, in every form, whatever the aggregate writes."""

from __future__ import annotations

import base64
import binascii
import json
import re

import msgspec

from mcproxy.aggregate.resource_version.formats import HEAD_DIGITS, PART_DIGITS
from mcproxy.aggregate.resource_version.layout import LayoutHistory
from mcproxy.kube.status import StatusError

MAX_LENGTH = 64 * 1024
"""Longest text that is read, characters; a numeric version of 1,000 members has 20 KB."""
_MAX_VERSION = 2**64 - 1
_SHOWN = 64  # characters of a client's text that stand in a message
_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}", re.ASCII)
_OBJECT = msgspec.json.Decoder(dict[str, str])


class Expired(StatusError):
    """410: the client must list anew."""

    def __init__(self, message: str = "The resourceVersion for the provided watch is too old.") -> None:
        super().__init__(410, message, reason="Expired")


class VersionReader:
    """Reads resource versions for an aggregate with the layouts of `history`, its present and earlier ones."""

    __slots__ = ("_history",)

    def __init__(self, history: LayoutHistory) -> None:
        self._history = history

    def read(self, text: str, owner: str | None = None) -> dict[str, int] | None:
        """Return the version of each member that the text has one for; None for "" and "0".

        `owner` is the member whose version a plain number is, where the request names one object and its member is
        known; without it, a plain number is only read for an aggregate of one member.

        Raises Expired for a version of members, or an order of them, that the aggregate does not have and did not have,
        and for a part of a member that was removed; StatusError (400) for what is no resource version.
        """
        parts = self._parts(text)
        if parts is None:
            return None
        present = self._history.present
        if isinstance(parts, int):
            if parts == 0:
                return None
            name = present.names[0] if len(present) == 1 else owner
            if name is None or name not in present:
                raise Expired(f"resource version {parts} is that of one cluster; this server has several")
            return {name: parts}
        for name in parts:
            if name not in present:
                raise Expired(
                    f"the resource version has a part of cluster {_quoted(name)}, which this server does not have"
                )
        return parts

    def owner_part(self, text: str, member: str, subject: str = "the object") -> str:
        """Return what the member, which owns an object, calls the version of it: what goes on to it with a write.

        "" and "0" stay what they are, and so does a plain number. Of a numeric one it is the lead, which is the owner's
        version in every form that an object has; its part in an event may be an older one, to resume from. `subject`
        names the object in the error: `pods "web"`. Raises StatusError: 409 for a version without a part of the member,
        400 for what is no version.
        """
        part = self.list_part(text, member, subject)
        if len(text) > PART_DIGITS and _DIGITS.fullmatch(text):
            return text[HEAD_DIGITS : HEAD_DIGITS + PART_DIGITS].lstrip("0") or part
        return part

    def list_part(self, text: str, member: str, subject: str = "the list") -> str:
        """Return the member's part of a list's version; errors as of `owner_part`."""
        try:
            parts = self._parts(text)
        except Expired:
            parts = {}
        if parts is None or isinstance(parts, int):
            return text
        version = parts.get(member, 0)
        if not version:
            raise StatusError(
                409,
                f"Operation cannot be fulfilled on {subject}: the resource version has no part of cluster"
                f" {_quoted(member)}; please apply your changes to the latest version and try again",
            )
        return str(version)

    def _parts(self, text: str) -> dict[str, int] | int | None:
        """Return the parts that are not 0 by member, the number of a plain version, or None for "" and "0"."""
        if text in ("", "0"):
            return None
        if len(text) > MAX_LENGTH:
            raise _invalid(text, "value out of range")
        if _DIGITS.fullmatch(text):
            return self._vector(text) if len(text) > PART_DIGITS else _number(text)
        if _BASE64.fullmatch(text):
            return _karmada(text)
        raise _invalid(text)

    def _vector(self, text: str) -> dict[str, int]:
        count, rest = divmod(len(text) - HEAD_DIGITS, PART_DIGITS)
        if text[0] != "1" or rest or count < 1:
            raise _invalid(text, "value out of range")
        layout = self._history.find(count - 1, int(text[1:HEAD_DIGITS]))
        if layout is None:
            raise Expired("the resource version is of other clusters than this server has, or of another order of them")
        versions = [
            int(text[place : place + PART_DIGITS]) for place in range(HEAD_DIGITS + PART_DIGITS, len(text), PART_DIGITS)
        ]
        if any(version > _MAX_VERSION for version in versions):
            raise _invalid(text, "value out of range")
        return {name: version for name, version in zip(layout.names, versions, strict=True) if version}


def _number(text: str) -> int:
    version = int(text)
    if version > _MAX_VERSION:
        raise _invalid(text, "value out of range")
    return version


def _karmada(text: str) -> dict[str, int]:
    """Read the form of Karmada: either alphabet of base64, with padding or without."""
    stripped = text.rstrip("=").replace("+", "-").replace("/", "_")
    try:
        found = _OBJECT.decode(base64.urlsafe_b64decode(stripped + "=" * (-len(stripped) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        raise _invalid(text) from None
    versions: dict[str, int] = {}
    for name, version in found.items():
        if version in ("", "0"):  # Karmada: from the member's present state
            continue
        if len(version) > PART_DIGITS or not _DIGITS.fullmatch(version):
            raise _invalid(text)
        versions[name] = _number(version)
    return {name: version for name, version in versions.items() if version}


def _invalid(text: str, why: str = "invalid syntax") -> StatusError:
    value = _quoted(text)
    return StatusError(
        400,
        f"invalid resource version: resourceVersion: Invalid value: {value}: strconv.ParseUint: parsing {value}: {why}",
    )


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= _SHOWN else text[:_SHOWN] + "…", ensure_ascii=False)
