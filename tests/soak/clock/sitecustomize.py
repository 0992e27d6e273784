"""Makes the time of day of a Python process adjustable: `time.time()` is off by the seconds in the file $SOAK_CLOCK.

The interpreter imports a module of this name before anything else, where its folder is in PYTHONPATH. The monotonic
clock is untouched, as when an administrator or NTP sets a machine's clock.
"""

import mmap
import os
import struct
import time

if "SOAK_CLOCK" in os.environ:
    with open(os.environ["SOAK_CLOCK"], "rb") as _file:
        _offset = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)
    _real = time.time
    _unpack = struct.Struct("d").unpack_from

    def _shifted() -> float:
        offset: float = _unpack(_offset)[0]
        return _real() + offset

    time.time = _shifted
