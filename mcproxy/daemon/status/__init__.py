"""The status document: the present state of the daemon, as JSON. The answer of the control command `status`.

    *_status.py         the figures of one process, made by its Service on request
    sums.py             the sums of the figures of several processes
    certificate_status  from the configuration alone
    rates.py            the rates of the last quarter of an hour and of the last minute
    status_document.py  the whole document
    admin_source.py     the document, metrics and checks as Admin listeners get them

It is made on request (an idle daemon only samples rates). Times are RFC 3339 or seconds, sizes are bytes. An unknown
value is None. No secret and no path of a request is ever in it. It has user names, addresses and user agents of the top
senders, so it is for operators only, and metrics have none of these.
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
