"""The base of fakes that stand for a class of the program: to the type checker they are of any class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Stub = Any
else:

    class Stub:
        """Nothing is in it."""
