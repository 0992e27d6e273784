"""Causes: sentences for operators on why a server cannot be used, with a code for what depends on it (remedies).

The code is given where the sentence is made. It goes with the sentence from exception to exception and into the state
of an endpoint, and beside it in messages to other processes; a longer sentence that has it in the middle has none.
"""

from __future__ import annotations

from enum import Enum
from typing import Self


class CauseCode(Enum):
    """What a cause says."""

    OTHER = ""
    # The name and the address.
    NO_ADDRESS = "no-address"
    REFUSED = "refused"
    NO_ANSWER_TO_CONNECT = "no-answer-to-connect"
    NO_CONNECTION_IN_TIME = "no-connection-in-time"
    UNREACHABLE = "unreachable"
    TOO_MANY_FILES = "too-many-files"
    NO_FREE_PORT = "no-free-port"
    SOCKET_NOT_PERMITTED = "socket-not-permitted"
    NO_SOCKET = "no-socket"
    NOT_PERMITTED = "not-permitted"
    NOT_CONNECTED = "not-connected"
    # The handshake.
    HANDSHAKE_TIMEOUT = "handshake-timeout"
    CLIENT_CERTIFICATE = "client-certificate"
    NO_COMMON_CIPHER = "no-common-cipher"
    NOT_TLS = "not-tls"
    SERVER_NAME_UNKNOWN = "server-name-unknown"
    TLS_VERSION = "tls-version"
    HANDSHAKE_FAILED = "handshake-failed"
    NO_HTTP2 = "no-http2"
    # The certificate of the server, and that of the proxy.
    NO_CERTIFICATE = "no-certificate"
    UNKNOWN_AUTHORITY = "unknown-authority"
    EXPIRED = "expired"
    NOT_YET_VALID = "not-yet-valid"
    REVOKED = "revoked"
    WRONG_PURPOSE = "wrong-purpose"
    WRONG_SIGNATURE = "wrong-signature"
    UNTRUSTED = "untrusted"
    WRONG_NAME = "wrong-name"
    NO_NAME = "no-name"
    INVALID_NAMES = "invalid-names"
    OWN_CERTIFICATE = "own-certificate"
    # The answer.
    NO_ANSWER = "no-answer"
    BROKEN_OFF = "broken-off"
    NOT_HTTP = "not-http"
    UNAUTHORIZED = "401"
    FORBIDDEN = "403"
    NOT_FOUND = "404"
    TOO_MANY_REQUESTS = "429"
    SERVER_ERROR = "5xx"
    OTHER_ANSWER = "other-answer"


class Cause(str):
    """A sentence and its code."""

    __slots__ = ("code",)
    code: CauseCode

    def __new__(cls, text: str, code: CauseCode) -> Self:
        made = super().__new__(cls, text)
        made.code = code
        return made


def code_of(cause: str) -> CauseCode:
    """Return the code of a cause; that of a plain sentence is OTHER."""
    return cause.code if isinstance(cause, Cause) else CauseCode.OTHER


def read_cause(text: str, code: str) -> Cause:
    """Return a cause of which another process, perhaps of another version, has told text and code."""
    try:
        return Cause(text, CauseCode(code))
    except ValueError:
        return Cause(text, CauseCode.OTHER)


def code_of_status(status: int) -> CauseCode:
    """Return the code of a cause that is about the status of an answer."""
    try:
        return CauseCode(str(status))
    except ValueError:
        return CauseCode.SERVER_ERROR if 500 <= status < 600 else CauseCode.OTHER_ANSWER
