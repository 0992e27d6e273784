"""Formats of the access log: JSON, and the combined format. Pure.

What a client chose (its path, its user agent) is escaped and bounded, and credentials in the query are masked: a client
cannot forge a log line, and no token is in one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quote
from urllib.parse import unquote_plus

from mcproxy.observe.record import AccessRecord

Formatter = Callable[[AccessRecord], str]

LONGEST = 4096
"""Limit of a value that a client chose (characters); longer ones end in three dots."""

_KEPT = LONGEST + 1  # characters that are enough to see that a value is too long

_REPEATED = 256  # combinations of the values that many requests have in common; at most 24 KB each

_MASK = "***"
_SECRET_NAME = re.compile(
    r"token|secret|passw|authorization|api_?key|bearer|credential|signature|^(?:jwt|code|sig|auth|assertion|command)$"
)
_MAYBE_SECRET = re.compile(_SECRET_NAME.pattern.replace("^", "").replace("$", ""))
_COMBINED_UNSAFE = re.compile(r"[^\x20\x21\x23-\x5b\x5d-\x7e]")


def mask_query(uri: str) -> str:
    """Return `uri` with the values of query parameters that may be credentials replaced by ``***``.

    Applications behind `proxy` take credentials in a query (``?token=…``, ``?code=…``); the `command` of exec often has
    passwords in it.
    """
    path, mark, query = uri.partition("?")
    if not mark:
        return uri
    if "%" not in query and _MAYBE_SECRET.search(query.lower()) is None:
        return uri
    return path + "?" + "&".join(_mask_parameter(parameter) for parameter in query.split("&"))


def _mask_parameter(parameter: str) -> str:
    name, equals, value = parameter.partition("=")
    plain = unquote_plus(name).lower()
    if equals and value and _SECRET_NAME.search(plain):
        return name + "=" + _MASK
    return parameter


def _bounded(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def _masked(uri: str) -> str:
    """Cut first, since masking takes time for each parameter; a cut value is masked like a whole one."""
    return mask_query(uri) if len(uri) <= LONGEST else mask_query(uri[:LONGEST]) + "..."


class _Seconds:
    """Formats a time in whole seconds; keeps the last result, since most records share it with the one before."""

    __slots__ = ("_pattern", "_second", "_text")

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._second = -1
        self._text = ""

    def __call__(self, second: int) -> str:
        if second != self._second:
            self._second = second
            self._text = time.strftime(self._pattern, time.gmtime(second))
        return self._text


def json_formatter(process: str = "") -> Formatter:
    """Return a function that formats a record as a JSON object; the man page mcproxy.yaml(5) lists the keys.

    `process` is the name of this process, where there are several.
    """
    written_by = f'"process":{quote(process)},' if process else ""
    seconds = _Seconds("%Y-%m-%dT%H:%M:%S")

    @lru_cache(_REPEATED)
    def repeated(
        client: str, method: str, protocol: str, server: str, cluster: str, endpoint: str, user: str,
        impersonated: str, policy: str, verb: str, resource: str, reason: str, user_agent: str,
    ) -> str:  # fmt: skip
        """Format the fields that many requests of a client have in common."""
        optional = ""
        if impersonated:
            optional = f',"impersonatedUser":{quote(_bounded(impersonated))}'
        if policy:
            optional += f',"policy":{quote(policy)}'
        if verb:
            optional += f',"verb":{quote(verb)},"resource":{quote(_bounded(resource))}'
        if user_agent:
            optional += f',"userAgent":{quote(_bounded(user_agent))}'
        return (
            f'{written_by}"client":{quote(client)},"method":{quote(method)},"protocol":{quote(protocol)},'
            f'"server":{quote(server or "-")},'
            f'"cluster":{quote(cluster or "-")},"endpoint":{quote(endpoint or "-")},'
            f'"user":{quote(_bounded(user) or "-")},"reason":{quote(reason)}{optional}'
        )

    def format_json(record: AccessRecord) -> str:
        (when, client, method, uri, status, reason, server, cluster, endpoint, user, impersonated, policy,
         verb, resource, request_id, user_agent, bytes_in, bytes_out, first_byte, total, upgraded,
         cached, protocol, _, _) = record  # fmt: skip
        second, milliseconds = divmod(int(when * 1000 + 0.5), 1000)
        common = repeated(  # its cache keeps no more of what clients chose than a line does
            client, method, protocol, server, cluster, endpoint, user, impersonated, policy, verb, resource[:_KEPT],
            reason, user_agent[:_KEPT],
        )  # fmt: skip
        optional = f',"requestId":{quote(_bounded(request_id))}' if request_id else ""
        if cached is not None:
            optional += ',"cached":true' if cached else ',"cached":false'
        if first_byte is not None:
            optional += f',"firstByteSeconds":{first_byte:.6f}'
        return (
            f'{{"ts":"{seconds(second)}.{milliseconds:03d}Z",{common},"uri":{quote(_masked(uri))},"status":{status},'
            f'"bytesIn":{bytes_in},"bytesOut":{bytes_out},'
            f'"totalSeconds":{total:.6f},"upgraded":{"true" if upgraded else "false"}{optional}}}\n'
        )

    return format_json


def combined_formatter(process: str = "") -> Formatter:
    """Return a function that formats a record in the combined format of Apache and nginx, with four fields appended:

    server, cluster, reason and the total time in seconds; and `process`, the name of this process, where there are
    several. Tools that know the format ignore them.
    """
    written_by = f" {process}" if process else ""
    seconds = _Seconds("%d/%b/%Y:%H:%M:%S +0000")

    def escape(text: str) -> str:
        return _COMBINED_UNSAFE.sub(
            lambda match: "".join(f"\\x{byte:02x}" for byte in match[0].encode("utf-8", "replace")), text
        )

    def format_combined(record: AccessRecord) -> str:
        agent = escape(_bounded(record.user_agent)) or "-"
        uri = escape(_masked(record.uri))
        user = escape(_bounded(record.user)).replace(" ", "\\x20") or "-"
        return (
            f"{escape(record.client)} - {user} [{seconds(int(record.time))}] "
            f'"{escape(record.method)} {uri} {record.protocol}" {record.status} {record.bytes_out} "-" "{agent}" '
            f"{record.server or '-'} {record.cluster or '-'} {record.reason} {record.total:.3f}{written_by}\n"
        )

    return format_combined


FORMATTERS: dict[str, Callable[[str], Formatter]] = {"json": json_formatter, "combined": combined_formatter}
"""By the name that `logging.access.format` gives; each is called with the name of the process, "" for the only one."""
