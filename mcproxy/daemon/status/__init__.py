"""The status document: the current state of the daemon as JSON, which the control command `status` returns.

    *_status.py         the figures of one process, made by its Service on request
    process_status.py   also the sums of the figures of several processes
    certificate_status  the certificates, from the configuration alone
    rates.py            the rates of the last quarter of an hour and of the last minute
    status_document.py  the whole document
    admin_source.py     the document, metrics and checks as Admin listeners get them

The document is made on request; an idle daemon only samples rates. Times are RFC 3339 or seconds, sizes are bytes. An
unknown value is None. The document never contains secrets or request paths. It contains user names, addresses and user
agents of the top senders, so it is for operators only. Metrics contain none of these.
"""

from __future__ import annotations

import time
from typing import Any

Figures = dict[str, Any]
"""A JSON object."""


def rfc3339(seconds: float) -> str:
    """Return a time in seconds since 1970 as RFC 3339 in UTC, in whole seconds."""
    year, month, day, hour, minute, second, *_ = time.gmtime(seconds)
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"
