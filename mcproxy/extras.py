"""The advice in a message about a missing package that only an optional part of this program needs.

The advice names no package index: a package with this name there may belong to somebody else.
"""

from typing import Final

INSTALL_EXTRAS: Final = (
    "install what requirements/all.lock of this release names, with hashes: mcproxy docs install#pip-from-the-lock-file"
)
