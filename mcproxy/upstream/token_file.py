"""A bearer token in a file that another program rotates (a projected service account token, an agent, a cron job).

The file is checked at most once a second, and read only if it was replaced or changed. A token that was read stays in
use while the file cannot be read: rotation by "remove, then write" must not fail requests.
"""

from __future__ import annotations

import os
import stat

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.upstream.credentials import CredentialError, CredentialSource, bearer
from mcproxy.upstream.tls import ClientCertificate

log = Logger(__name__)

_CHECK_INTERVAL = 1.0  # seconds
_MAX_BYTES = 64 * 1024  # a token that fits into a request head

_Signature = tuple[int, int, int, int]


class TokenFile(CredentialSource):
    """The token of one file, with a client certificate if the configuration has one too."""

    def __init__(self, path: str, certificate: ClientCertificate | None, *, clock: IReactorTime, cluster: str) -> None:
        self._path = path
        self._certificate = certificate
        self._clock = clock
        self._cluster = cluster
        self._header: bytes | None = None
        self._signature: _Signature | None = None
        self._next_check = 0.0
        self._error: str | None = None
        self._check_file(clock.seconds())

    @property
    def certificate(self) -> ClientCertificate | None:
        return self._certificate

    @property
    def header(self) -> bytes | None:
        return self._header

    def authorization(self) -> bytes | None:
        now = self._clock.seconds()
        if now >= self._next_check:
            self._check_file(now)
        if self._header is None:
            raise CredentialError(self._error or f"{self._path} was not read yet")
        return self._header

    async def refresh(self) -> None:
        self._signature = None
        self._check_file(self._clock.seconds())
        self.authorization()

    def invalidate(self, rejected: bytes | None = None) -> bool:
        """Read the file again, regardless of its times; True if it holds another token than `rejected`."""
        before = rejected or self._header
        if self._header == before:
            self._signature = None
            self._check_file(self._clock.seconds())
        return self._header is not None and self._header != before

    def _check_file(self, now: float) -> None:
        self._next_check = now + _CHECK_INTERVAL
        try:
            self._read_if_changed()
        except OSError as error:
            self._failed(f"cannot read the token file {self._path}: {error.strerror or error}")
        except CredentialError as error:
            self._failed(error.cause)
        else:
            self._error = None

    def _read_if_changed(self) -> None:
        info = os.stat(self._path)
        signature = _signature(info)
        if signature == self._signature:
            return
        # Non-blocking, and checked on the open file: a FIFO put in its place would block the whole daemon.
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                raise CredentialError(f"the token file {self._path} is not a regular file")
            data = os.read(descriptor, _MAX_BYTES + 1)
        finally:
            os.close(descriptor)
        signature = _signature(info)
        if len(data) > _MAX_BYTES:
            raise CredentialError(f"the token file {self._path} is larger than {_MAX_BYTES} bytes")
        self._header = bearer(data.decode("latin-1"), self._path)
        self._signature = signature

    def _failed(self, cause: str) -> None:
        self._signature = None
        if cause == self._error:
            return
        self._error = cause
        log.warn(
            "the token file of a cluster cannot be used",
            event="token_file_unusable",
            cluster=self._cluster,
            cause=cause,
            effect="there is none yet" if self._header is None else "the last token stays in use",
            log_subject=("credential", self._cluster, cause),
        )

    def __repr__(self) -> str:
        return f"<TokenFile {self._path}>"


def _signature(info: os.stat_result) -> _Signature:
    return (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)
