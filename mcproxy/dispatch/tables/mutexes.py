"""Robust mutexes between processes, in shared memory.

A mutex survives the death of its holder (PTHREAD_MUTEX_ROBUST of the C library). The kernel records the robust mutexes
that each thread holds. When the holder ends for any reason, the next thread that locks the mutex gets EOWNERDEAD, and
repairs the covered words. A stopped holder (SIGSTOP) would block all other processes. So they kill it, which ends only
the requests that it serves.

A mutex is held for microseconds, so locking tries a few times before it sleeps. Locking keeps the interpreter's lock
(GIL). Otherwise another thread of this process could run while the mutex is held.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from collections.abc import Callable
from threading import get_native_id
from typing import Any

from mcproxy.dispatch.tables.layout import MUTEX_BYTES

_PROCESS_SHARED = 1  # PTHREAD_PROCESS_SHARED, of glibc and musl
_ROBUST = 1  # PTHREAD_MUTEX_ROBUST
_TID_MASK = 0x3FFFFFFF  # FUTEX_TID_MASK: the kernel reads the holder's thread id from the mutex
_TRIES = 30
# Seconds of waiting before a check whether the holder is stopped. Two checks are needed to kill a process.
_PATIENCE = 0.1
_POLL_INTERVAL = 0.0005  # seconds


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class MutexError(OSError):
    """The C library refused an operation on a mutex."""


class Mutexes:
    """An array of mutexes in shared memory.

    `try_lock` and `unlock` are the C library's functions, for callers on the hot path:
    ``if code := try_lock(mutex): self.lock_slowly(number, code)``. Their arguments are items of `pointers`.
    """

    def __init__(
        self, address: int, count: int, repair: Callable[[int], None], may_kill: Callable[[int], bool]
    ) -> None:
        """`repair(number)` repairs the words that a mutex covers, while it is held, after the death of its holder.

        `may_kill(pid)` returns whether a stopped holder is a process of this daemon. Raises MutexError.
        """
        try:
            library = ctypes.PyDLL(None)  # the C library of this process; PyDLL keeps the interpreter's lock
            self._library = library
            self.try_lock: Callable[[Any], int] = library.pthread_mutex_trylock
            self.unlock: Callable[[Any], int] = library.pthread_mutex_unlock
            self._timed_lock = _timed_lock(library)
            self._consistent = library.pthread_mutex_consistent
        except (OSError, AttributeError) as error:  # a statically linked interpreter has no C library to load
            raise MutexError(errno.ENOTSUP, f"no mutexes between processes: {error}") from None
        self.pointers = [ctypes.c_void_p(address + number * MUTEX_BYTES) for number in range(count)]
        self._repair = repair
        self._may_kill = may_kill
        self._holder_at = 0

    def initialize(self) -> None:
        """Initialize all mutexes, unlocked. Called once, by the creator of the memory. Raises MutexError."""
        library = self._library
        attributes = ctypes.create_string_buffer(MUTEX_BYTES)
        self._check(library.pthread_mutexattr_init(attributes))
        self._check(library.pthread_mutexattr_setpshared(attributes, _PROCESS_SHARED))
        self._check(library.pthread_mutexattr_setrobust(attributes, _ROBUST))
        filler = b"\xa5" * MUTEX_BYTES
        trial = ctypes.create_string_buffer(2 * filler, 2 * MUTEX_BYTES)
        self._check(library.pthread_mutex_init(trial, attributes))
        if trial.raw[MUTEX_BYTES:] != filler:
            raise MutexError(errno.ENOTSUP, f"a mutex of this C library has more than {MUTEX_BYTES} bytes")
        for pointer in self.pointers:
            self._check(library.pthread_mutex_init(pointer, attributes))
        self._check(library.pthread_mutexattr_destroy(attributes))

    def lock(self, number: int) -> None:
        """Lock a mutex. Raises MutexError."""
        code = self.try_lock(self.pointers[number])
        if code:
            self.lock_slowly(number, code)

    def release(self, number: int) -> None:
        """Unlock a mutex that this thread holds."""
        self.unlock(self.pointers[number])

    def lock_slowly(self, number: int, code: int) -> None:
        """Lock a mutex after `try_lock` has returned `code`, which is not 0. Raises MutexError."""
        pointer = self.pointers[number]
        for _ in range(_TRIES):
            if code != errno.EBUSY:
                break
            code = self.try_lock(pointer)
        suspect = 0  # process id of a holder that the last check found stopped
        while code in (errno.EBUSY, errno.ETIMEDOUT):
            code = self._timed_lock(pointer, _PATIENCE)
            if code == errno.ETIMEDOUT:
                suspect = self._check_holder(pointer, suspect)
        if code == errno.EOWNERDEAD:
            self._repair(number)
            code = self._consistent(pointer)
        self._check(code)

    def _check_holder(self, pointer: ctypes.c_void_p, suspect: int) -> int:
        """Return the holder if it is stopped, else 0; kill it if it was found stopped before (`suspect`)."""
        holder = self._holder(pointer)
        if not holder or not self._may_kill(holder) or not _is_stopped(holder):
            return 0
        if holder == suspect:
            with contextlib.suppress(ProcessLookupError):  # another process has killed it already
                os.kill(holder, signal.SIGKILL)
        return holder

    def _holder(self, pointer: ctypes.c_void_p) -> int:
        """Return the thread that holds a mutex, or 0; the id of a main thread is that of its process."""
        assert pointer.value is not None
        if not self._holder_at:
            self._holder_at = 1 + self._find_holder_word()
        word = ctypes.c_uint32.from_address(pointer.value + self._holder_at - 1)
        return word.value & _TID_MASK

    def _find_holder_word(self) -> int:
        """Return the byte offset of the holder's id: 0 in glibc, 4 in musl. Raises MutexError."""
        mutex = ctypes.create_string_buffer(MUTEX_BYTES)
        probe = Mutexes(ctypes.addressof(mutex), 1, self._repair, self._may_kill)
        probe.initialize()
        probe.lock(0)
        try:
            mine = get_native_id()
            for at in (0, 4, 8):
                if ctypes.c_uint32.from_buffer(mutex, at).value & _TID_MASK == mine:
                    return at
        finally:
            probe.release(0)
        raise MutexError(errno.ENOTSUP, "this C library does not say who holds a mutex")

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise MutexError(code, f"a mutex between processes failed: {os.strerror(code)}")


def _timed_lock(library: Any) -> Callable[[ctypes.c_void_p, float], int]:
    """Return a function that locks a mutex within a number of seconds, or else returns ETIMEDOUT.

    `pthread_mutex_timedlock` waits until a time of day; if the clock is set back, the wait for a stopped holder would
    be longer by the same time. `pthread_mutex_clocklock` (glibc 2.30, POSIX 2024) supports the monotonic clock; if the
    C library lacks it, the mutex is polled.
    """
    clock_lock: Any = getattr(library, "pthread_mutex_clocklock", None)

    def lock(pointer: ctypes.c_void_p, seconds: float) -> int:
        until = time.monotonic() + seconds
        timespec = ctypes.byref(_Timespec(int(until), int(until % 1 * 1e9)))
        return int(clock_lock(pointer, time.CLOCK_MONOTONIC, timespec))

    def poll(pointer: ctypes.c_void_p, seconds: float) -> int:
        until = time.monotonic() + seconds
        while code := int(library.pthread_mutex_trylock(pointer)):
            if code != errno.EBUSY:
                return code
            if time.monotonic() >= until:
                return errno.ETIMEDOUT
            time.sleep(_POLL_INTERVAL)
        return 0

    return poll if clock_lock is None else lock


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])
    except OSError:
        return False  # the holder has ended meanwhile, so the kernel gives the mutex to the next thread
