"""What a message says where a package is missing that only an optional part of this program needs.

No index is named: a package of this program's name there may be somebody else's.
"""

from typing import Final

INSTALL_EXTRAS: Final = (
    "install what requirements/all.lock of this release names, with hashes: mcproxy docs install#pip-from-the-lock-file"
)
