"""Error codes of HTTP/2 and the two ways in which a violation of the protocol ends (RFC 9113 5.4 and 7)."""

from __future__ import annotations

from typing import Final


class ErrorCode:
    """The codes of RST_STREAM and GOAWAY (RFC 9113 7), as plain ints."""

    NO_ERROR: Final = 0x0
    PROTOCOL_ERROR: Final = 0x1
    INTERNAL_ERROR: Final = 0x2
    FLOW_CONTROL_ERROR: Final = 0x3
    SETTINGS_TIMEOUT: Final = 0x4
    STREAM_CLOSED: Final = 0x5
    FRAME_SIZE_ERROR: Final = 0x6
    REFUSED_STREAM: Final = 0x7
    CANCEL: Final = 0x8
    COMPRESSION_ERROR: Final = 0x9
    CONNECT_ERROR: Final = 0xA
    ENHANCE_YOUR_CALM: Final = 0xB
    INADEQUATE_SECURITY: Final = 0xC
    HTTP_1_1_REQUIRED: Final = 0xD


_NAMES = {code: name for name, code in vars(ErrorCode).items() if name.isupper()}


def code_name(code: int) -> str:
    """Return the name of an error code, for the log; an unknown one as a number."""
    return _NAMES.get(code) or f"0x{code:x}"


class HTTP2ConnectionError(Exception):
    """The connection ends with GOAWAY and this code (RFC 9113 5.4.1); `cause` is for the log and the debug data."""

    def __init__(self, code: int, cause: str) -> None:
        super().__init__(f"{code_name(code)}: {cause}")
        self.code = code
        self.cause = cause


class Flood(HTTP2ConnectionError):
    """The peer makes us work for nothing; `kind` is what it is counted as."""

    def __init__(self, kind: str, cause: str) -> None:
        super().__init__(ErrorCode.ENHANCE_YOUR_CALM, cause)
        self.kind = kind


class HTTP2StreamError(Exception):
    """The stream ends with RST_STREAM and this code (RFC 9113 5.4.2); `cause` is for the log."""

    def __init__(self, code: int, cause: str) -> None:
        super().__init__(f"{code_name(code)}: {cause}")
        self.code = code
        self.cause = cause
