"""Causes: sentences that tell operators why a server is unusable, with a code that determines the remedy.

The code is set where the sentence is made. It stays with the sentence through exceptions, in the state of an endpoint,
and in messages to other processes. A longer sentence that quotes a cause has no code.
"""

from __future__ import annotations

from enum import Enum
from typing import Self


class CauseCode(Enum):
    """The subject of a cause: name, address, HTTP proxy and connection; TLS and certificates; or the response."""

    OTHER = ""
    NO_ADDRESS = "network/no-address"
    REFUSED = "network/refused"
    NO_ANSWER_TO_CONNECT = "network/no-answer-to-connect"
    NO_CONNECTION_IN_TIME = "network/no-connection-in-time"
    UNREACHABLE = "network/unreachable"
    TOO_MANY_FILES = "network/too-many-files"
    NO_FREE_PORT = "network/no-free-port"
    SOCKET_NOT_PERMITTED = "network/socket-not-permitted"
    NO_SOCKET = "network/no-socket"
    NOT_PERMITTED = "network/not-permitted"
    NOT_CONNECTED = "network/not-connected"
    NO_TUNNEL = "network/no-tunnel"
    PROXY_UNREACHABLE = "network/proxy-unreachable"
    NOT_AN_HTTP_PROXY = "network/not-an-http-proxy"
    PROXY_CREDENTIALS = "network/proxy-credentials"
    REFUSED_BY_PROXY = "network/refused-by-proxy"
    NOT_REACHED_BY_PROXY = "network/not-reached-by-proxy"
    HANDSHAKE_TIMEOUT = "network/handshake-timeout"
    NO_ANSWER = "network/no-answer"
    CLIENT_CERTIFICATE = "tls/client-certificate"
    NO_COMMON_CIPHER = "tls/no-common-cipher"
    NOT_TLS = "tls/not-tls"
    SERVER_NAME_UNKNOWN = "tls/server-name-unknown"
    TLS_VERSION = "tls/version"
    NO_COMMON_PROTOCOL = "tls/no-common-protocol"
    HTTP2_REFUSED = "tls/http2-refused"
    HANDSHAKE_FAILED = "tls/handshake-failed"
    NO_CERTIFICATE = "tls/no-certificate"
    UNKNOWN_AUTHORITY = "tls/unknown-authority"
    EXPIRED = "tls/expired"
    NOT_YET_VALID = "tls/not-yet-valid"
    REVOKED = "tls/revoked"
    WRONG_PURPOSE = "tls/wrong-purpose"
    WRONG_SIGNATURE = "tls/wrong-signature"
    UNTRUSTED = "tls/untrusted"
    WRONG_NAME = "tls/wrong-name"
    NO_NAME = "tls/no-name"
    INVALID_NAMES = "tls/invalid-names"
    OWN_CERTIFICATE = "tls/own-certificate"
    NO_HTTP2 = "answer/no-http2"
    BROKEN_OFF = "answer/broken-off"
    NOT_HTTP = "answer/not-http"
    UNAUTHORIZED = "answer/401"
    FORBIDDEN = "answer/403"
    NOT_FOUND = "answer/404"
    TOO_MANY_REQUESTS = "answer/429"
    SERVER_ERROR = "answer/5xx"
    OTHER_ANSWER = "answer/other"

    @property
    def kind(self) -> str:
        """Return "network", "tls", "answer", or "" for OTHER."""
        return self.value.partition("/")[0]


class Cause(str):
    """A sentence with its code."""

    __slots__ = ("code",)
    code: CauseCode

    def __new__(cls, text: str, code: CauseCode) -> Self:
        made = super().__new__(cls, text)
        made.code = code
        return made

    def __reduce__(self) -> tuple[type[Cause], tuple[str, CauseCode]]:
        return type(self), (str(self), self.code)  # the method of str would drop the code


def code_of(cause: str) -> CauseCode:
    """Return the code of a cause; OTHER for a plain sentence."""
    return cause.code if isinstance(cause, Cause) else CauseCode.OTHER


def read_cause(text: str, code: str) -> Cause:
    """Return a cause from the text and the code of another process, which can have another version."""
    try:
        return Cause(text, CauseCode(code))
    except ValueError:
        return Cause(text, CauseCode.OTHER)


def code_of_status(status: int) -> CauseCode:
    """Return the code for the status of a response."""
    try:
        return CauseCode(f"answer/{status}")
    except ValueError:
        return CauseCode.SERVER_ERROR if 500 <= status < 600 else CauseCode.OTHER_ANSWER
