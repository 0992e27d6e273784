"""Values of query parameters, converted as Kubernetes converts url.Values.

Source: apimachinery `runtime/converter.go` (Convert_Slice_string_To_bool and _To_int64).
"""

from __future__ import annotations

import re

from mcproxy.demo.apimachinery import status


def boolean(value: str | None) -> bool:
    """Anything but "0" and "false" is true, the empty value too; a missing parameter (None) is false."""
    return value is not None and value.lower() not in ("false", "0")


def integer(text: str) -> int:
    """strconv.ParseInt. Raises APIError 400 with its error."""
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise status.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)
