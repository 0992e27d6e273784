"""The status document: the present state of the daemon, as JSON. The answer of the control command `status`.

    *_status.py         the figures of one process, made by its Service on request
    sums.py             the sums of the figures of several processes
    certificate_status  from the configuration alone
    history.py          the rates of the last minutes, for charts
    recent_rates.py     the rates of the last minute, of each server, cluster and endpoint; clients that were refused
    status_document.py  the whole document
    admin_source.py     the document, metrics and checks as Admin listeners get them
    cache_readiness.py  the checks of /readyz that the caches make

It is made on request (an idle daemon pays for the history alone). Times are RFC 3339 or seconds, sizes are bytes. An
unknown value is None. No secret and no path of a request is ever in it. It has names of users, addresses and user
agents of the top senders: so it is for operators, and never for metrics.
"""

from typing import Any

Figures = dict[str, Any]
"""A JSON object."""
