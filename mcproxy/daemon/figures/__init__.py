"""The status document: what the daemon is now, as JSON. The answer of the control command `status`.

    process.py, listeners.py, servers.py, clusters.py, aggregates.py, limits.py, identity.py
                     the figures of one process, made by its Service when they are asked for
    sums.py          those of several processes as those of one
    certificates.py  what only the configuration knows
    history.py       the rates of the last minutes
    document.py      all of it together

Made when somebody asks (an idle daemon pays for the history alone). Times are RFC 3339 or seconds, sizes are bytes. A
value that nobody can know is None. No secret, user name or path of a request is ever in it.
"""

from typing import Any

Figures = dict[str, Any]
"""A JSON object."""
