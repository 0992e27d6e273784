"""A configuration on its way to the children: pickled, in memory that has only a descriptor (memfd_create(2)).

Parent and child are the same program, and pickles are read from the supervisor only. A descriptor can be passed many
times, so all children and their successors read the same pages.
"""

from __future__ import annotations

import mmap
import os
import pickle

from mcproxy.config import model


def write(config: model.Config) -> int:
    """Return a descriptor with `config`. The caller closes it; raises OSError."""
    descriptor = os.memfd_create("mcproxy-config")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            pickle.dump(config, file, pickle.HIGHEST_PROTOCOL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read(descriptor: int) -> model.Config:
    """Return the configuration, and close the descriptor."""
    try:
        # Not read(2): all processes share one offset.
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as content:
            config: model.Config = pickle.loads(content)
    finally:
        os.close(descriptor)
    return config
