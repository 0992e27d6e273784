"""The advice in a message about a missing package that only an optional part of this program needs.

It names no package index: a package of this program's name there may be somebody else's.
"""

from typing import Final

INSTALL_EXTRAS: Final = (
    "install what requirements/all.lock of this release names, with hashes: mcproxy docs install#pip-from-the-lock-file"
)
