"""What differs between objects and classes of the two builds, for tests of both."""

from __future__ import annotations

from typing import Any


def attributes_of(value: object) -> dict[str, Any]:
    """Return the attributes by name; a compiled class has their names in another place than `__slots__`."""
    kind: Any = type(value)
    names = getattr(kind, "__mypyc_attrs__", None) or kind.__slots__
    return {name: getattr(value, name) for name in names}


def is_compiled(owner: object) -> bool:
    """Return whether a class or a module is compiled: no test can replace what is in it for its other callers."""
    return hasattr(owner, "__mypyc_attrs__") or str(getattr(owner, "__file__", "")).endswith(".so")
