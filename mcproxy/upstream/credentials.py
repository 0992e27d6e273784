"""The proxy's own credential for a cluster: the current Authorization header and client certificate.

`authorization()` is called for every request, so it is synchronous. If a credential takes time (an exec plugin),
`is_ready` is False while the caller must wait:

    if not credentials.is_ready:
        await credentials.ready()
    header = credentials.authorization()

After a 401 the pipeline calls `invalidate(header)`; if the result is True, it can send the request once more.
No repr, error or log line contains a secret.
"""

from __future__ import annotations

import base64
import os
import re
import stat
from abc import ABCMeta, abstractmethod
from collections.abc import Callable

from mypy_extensions import mypyc_attr
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.upstream.tls import ClientCertificate

_BLANK = " \t\r\n"  # whitespace that editors and echo add to a token
_VISIBLE = re.compile(r"[\x20-\x7e]*")  # RFC 9110 5.5 without obs-text and tabs, which tokens do not contain

_REFUSED_FOR = 60.0
"""Seconds for which a credential counts as refused after the last 401."""


class CredentialError(Exception):
    """No credential is available; `cause` is a sentence for operators without secrets."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


@mypyc_attr(allow_interpreted_subclasses=True)  # ExecCredentials
class CredentialSource(metaclass=ABCMeta):
    """The credential of one cluster. The base class is for credentials that never change."""

    _refused_at: float | None = None
    _refused: tuple[bytes | None, ClientCertificate | None] = (None, None)

    @property
    def is_ready(self) -> bool:
        """Whether `authorization()` can be called without waiting for `ready()`."""
        return True

    @property
    def expires_at(self) -> float | None:
        """When the credential in use expires, in seconds since 1970; None if unknown."""
        return None

    @property
    @abstractmethod
    def certificate(self) -> ClientCertificate | None:
        """The client certificate for new connections."""

    @property
    @abstractmethod
    def header(self) -> bytes | None:
        """The last known value of the Authorization header, without reading a file or running a plugin."""

    @abstractmethod
    def authorization(self) -> bytes | None:
        """Return the value of the Authorization header, None if there is none. Raises `CredentialError`."""

    async def ready(self) -> None:
        """Wait until `authorization()` has a value. Raises `CredentialError`."""
        return

    async def refresh(self) -> None:
        """Read the credential again from its origin. Raises `CredentialError`."""
        return

    def invalidate(self, rejected: bytes | None = None) -> bool:
        """Note that the cluster responded with 401 to the header value `rejected` (None: the one in use).

        Returns True if another credential is in use now, or if `ready()` can get one, so that a retry makes sense.
        """
        return False

    def note_refusal(self, now: float, rejected: bytes | None = None) -> None:
        """Note that the cluster responded with 401 to the header value `rejected` (None: the one in use), and that the
        request is not retried with another value; `now` in seconds.
        """
        self._refused_at = now
        self._refused = (self.header if rejected is None else rejected, self.certificate)

    def is_refused(self, now: float) -> bool:
        """Whether the cluster has refused the credential in use within the last minute.

        Refusals of a credential that was renewed since do not count. `now`: the same clock as in `note_refusal`.
        """
        if self._refused_at is None or now - self._refused_at >= _REFUSED_FOR:
            return False
        return self._refused == (self.header, self.certificate)

    def on_certificate_change(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Subscribe `notify` to changes of `certificate`; the result unsubscribes it."""
        return lambda: None

    def close(self) -> None:
        """Stop background work; the last known credential stays usable."""
        return

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class StaticCredentials(CredentialSource):
    """A credential of the configuration: a token, a name and password, or only a client certificate."""

    def __init__(self, header: bytes | None, certificate: ClientCertificate | None) -> None:
        self._header = header
        self._certificate = certificate

    @property
    def certificate(self) -> ClientCertificate | None:
        return self._certificate

    @property
    def header(self) -> bytes | None:
        return self._header

    def authorization(self) -> bytes | None:
        return self._header


def bearer(token: str, origin: str) -> bytes:
    """Return the header value for `token`, read from `origin`; surrounding whitespace is removed.

    Raises `CredentialError` if the token is empty or invalid in a header (RFC 9110 5.5); it is never cleaned.
    """
    token = token.strip(_BLANK)
    if not token:
        raise CredentialError(f"the token from {origin} is empty")
    if not _VISIBLE.fullmatch(token):
        raise CredentialError(f"the token from {origin} has control or non-ASCII characters; it is not sent")
    return b"Bearer " + token.encode("ascii")


def basic(user: str, password: model.Secret) -> bytes:
    """Return the header value for a name and password (RFC 7617). Raises `CredentialError` for a colon in the name."""
    if ":" in user:
        raise CredentialError("the user name of basic authentication has a colon; it is not sent (RFC 7617)")
    pair = f"{user}:{password.reveal()}".encode()
    return b"Basic " + base64.b64encode(pair)


def configured_certificate(credentials: model.Credentials) -> ClientCertificate | None:
    """Return the client certificate of the configuration, or None."""
    if credentials.certificate is None or credentials.key is None:
        return None
    return ClientCertificate(credentials.certificate.data, credentials.key.data)


log = Logger(__name__)

# Reads a bearer token from a file that another program rotates (projected service account token, agent, cron job).
#
# The file is checked at most once a second, and read only if it was replaced or changed. The last token stays in use
# while the file cannot be read, so that rotation by "remove, then write" does not fail requests.

_CHECK_INTERVAL = 1.0  # minimum of seconds between two checks
_MAX_BYTES = 64 * 1024  # maximum size of a file, since a token must fit into a request head

_Signature = tuple[int, int, int, int]


class TokenFile(CredentialSource):
    """The token in a file, with a client certificate if the configuration has one too."""

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
        """Read the file again, regardless of its times; return True if it contains another token than `rejected`."""
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
        # Opened as non-blocking and checked when open, because a FIFO instead of the file would block the daemon.
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
