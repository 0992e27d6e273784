"""Records of requests, as tests want them."""

from typing import Any

from mcproxy.observe.record import AccessRecord

_RECORD: dict[str, Any] = {
    "time": 0.0,
    "client": "10.0.0.1",
    "method": "GET",
    "uri": "/api/v1/pods",
    "status": 200,
    "server": "east",
    "cluster": "c1",
    "endpoint": "a",
    "policy": "rest",
    "verb": "list",
    "resource": "pods",
    "bytes_in": 3,
    "bytes_out": 5,
    "first_byte": 0.02,
    "total": 0.04,
    "upstream": 0.015,
}


def record(**fields: Any) -> AccessRecord:
    """Return the record of a list of pods, with other values for `fields`."""
    return AccessRecord(**{**_RECORD, **fields})
