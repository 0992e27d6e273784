"""Certificates and keys that are replaced on disk come into force without a reload (`daemon.watchFiles`).

Each second the files of all pairs are looked at: those of listeners, and the proxy's own for clusters, front proxies,
webhooks and Redis. Those that are changed and fit are put into the configuration in force, which is applied as by a
reload; nothing else of the file is read again. So new connections use them, connections that showed the former ones
get no new requests, all processes follow, and status and metrics show what is in use.

A pair of which the certificate was replaced before the key, or the other way round, does not fit for a moment: the
former one stays, and only if that lasts there is a line in the log. Data in a kubeconfig is read as at a reload, in
another process. As client-go's `transport/cert_rotation.go` and kube-apiserver's `dynamiccertificates`, which look at
their files every minute.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from mcproxy.config.certificate_pairs import Pair, Place, pairs_in, with_pairs
from mcproxy.config.model import Config, PEMFile
from mcproxy.config.problem import ConfigErrors
from mcproxy.daemon.dependencies import Dependencies
from mcproxy.daemon.errors import describe
from mcproxy.net.tls_contexts import PairError, load_pair

log = Logger(__name__)

INTERVAL = 1.0
"""Seconds between two looks at the files."""
PATIENCE = 10.0
"""Seconds for which a pair may not fit before the log says so."""

_MAX_BYTES = 1024 * 1024
_EMBEDDED = re.compile(r"(.+)#users\[\d+\]\.user\.client-(?:certificate|key)-data\Z")

_Signature = tuple[int, int, int, int] | None


class WatchedDaemon(Protocol):
    """The daemon (`lifecycle.Daemon`)."""

    @property
    def config(self) -> Config:
        """The configuration in force."""

    @property
    def serving(self) -> bool: ...

    async def apply(self, config: Config) -> None:
        """Put a configuration in force; raises with nothing changed."""


@dataclass(slots=True)
class _Problem:
    cause: str
    since: float
    logged: bool = False


class CertificateWatch:
    """The watch of one daemon; `reloading` says whether a reload is under way, which reads the files itself."""

    def __init__(self, daemon: WatchedDaemon, dependencies: Dependencies, reloading: Callable[[], bool]) -> None:
        self._daemon = daemon
        self._dependencies = dependencies
        self._reloading = reloading
        self._reactor = dependencies.reactor
        self._config: Config | None = None
        self._pairs: dict[Place, Pair] = {}
        self._seen: dict[str, _Signature] = {}  # by file, as it was when it was read
        self._problems: dict[Place, _Problem] = {}
        self._loop = LoopingCall(self._run)
        self._loop.clock = self._reactor

    def start(self) -> None:
        """Begin to look at the files."""
        self._loop.start(INTERVAL, now=False)

    def stop(self) -> None:
        """Look at them no more."""
        if self._loop.running:
            self._loop.stop()

    def _run(self) -> Deferred[None]:
        """Look at the files once; the next look waits for its end."""
        looked: Deferred[None] = Deferred.fromCoroutine(self.look())
        return looked.addErrback(
            lambda failure: log.failure("looking at certificates failed", event="internal_error", failure=failure)
        )

    async def look(self) -> None:
        """Look at the files, and put in force what has changed."""
        config = self._daemon.config
        if not config.daemon.watch_files or not self._daemon.serving or self._reloading():
            return
        if config is not self._config:
            self._config, self._pairs, self._seen = config, pairs_in(config), {}
            self._problems = {place: known for place, known in self._problems.items() if place in self._pairs}
        changed = self._changed_files()
        renewed = self._read({place for place, pair in self._pairs.items() if changed.intersection(map(_file, pair))})
        if any(_is_embedded(pair) and changed.intersection(map(_file, pair)) for pair in self._pairs.values()):
            renewed |= await self._read_kubeconfigs(changed)
        if renewed and self._daemon.config is config and not self._reloading() and self._daemon.serving:
            await self._apply(config, renewed)
        elif renewed:
            self._seen = {}  # a reload came in between: look again
        self._log_what_lasts()

    def _changed_files(self) -> set[str]:
        """Return the files that are other ones than when they were read, and note what they are now."""
        changed = set()
        for file in {_file(pem) for pair in self._pairs.values() for pem in pair}:
            signature = _signature(file)
            if file not in self._seen or self._seen[file] != signature:
                self._seen[file] = signature
                changed.add(file)
        return changed

    def _read(self, places: set[Place]) -> dict[Place, Pair]:
        """Return what has changed and fits, of the pairs in files of their own."""
        renewed: dict[Place, Pair] = {}
        for place in places:
            pair = self._pairs[place]
            if _is_embedded(pair):
                continue
            try:
                read = Pair(*(PEMFile(pem.path, _content(pem.path)) for pem in pair))
                self._accept(place, read, renewed)
            except OSError as error:
                self._refuse(place, f"{error.filename or pair.chain.path} cannot be read: {error.strerror or error}")
        return renewed

    async def _read_kubeconfigs(self, changed: set[str]) -> dict[Place, Pair]:
        """Return what has changed and fits, of the pairs that kubeconfigs hold themselves."""
        places = [
            place
            for place, pair in self._pairs.items()
            if _is_embedded(pair) and changed.intersection(map(_file, pair))
        ]
        renewed: dict[Place, Pair] = {}
        try:
            found = pairs_in((await self._dependencies.load(self._dependencies.path)).config)
        except ConfigErrors as error:
            for place in places:
                self._refuse(place, error.lines[0])
            return {}
        except Exception as error:
            cause, _ = describe(error) or (f"{type(error).__name__}: {error}", "")
            for place in places:
                self._refuse(place, cause)
            return {}
        for place in places:
            if place in found:
                self._accept(place, found[place], renewed)
        return renewed

    def _accept(self, place: Place, pair: Pair, renewed: dict[Place, Pair]) -> None:
        if [pem.data for pem in pair] == [pem.data for pem in self._pairs[place]]:
            self._problems.pop(place, None)
            return
        try:
            load_pair(pair.chain.data, pair.key.data)
        except PairError as error:
            self._refuse(place, f"{pair.chain.path}: {error}")
        else:
            renewed[place] = pair

    def _refuse(self, place: Place, cause: str) -> None:
        known = self._problems.get(place)
        if known is None or known.cause != cause:
            since = self._reactor.seconds() if known is None else known.since
            self._problems[place] = _Problem(cause, since)

    async def _apply(self, config: Config, renewed: dict[Place, Pair]) -> None:
        try:
            await self._daemon.apply(with_pairs(config, renewed))
        except Exception as error:
            cause, _ = describe(error) or (f"{type(error).__name__}: {error}", "")
            for place in renewed:
                self._refuse(place, cause)
            self._seen = {}  # try again: it need not be the pair's fault
            return
        for place in renewed:
            self._problems.pop(place, None)
        log.info(
            "certificates were replaced on disk: new connections use the new ones",
            event="certificates_renewed",
            entries=", ".join(sorted(map(_entry, renewed))),
            files=", ".join(sorted({_file(pair.chain) for pair in renewed.values()})),
        )

    def _log_what_lasts(self) -> None:
        now = self._reactor.seconds()
        for place, problem in self._problems.items():
            if problem.logged or now - problem.since < PATIENCE:
                continue
            problem.logged = True
            log.warn(
                "the files of a certificate were changed and cannot be used: the former one stays in use",
                event="certificate_files_unusable",
                entry=_entry(place),
                cause=problem.cause,
                todo="put a certificate and its key there that the daemon's user can read",
                log_subject=("certificate", _entry(place), problem.cause),
            )


def _entry(place: Place) -> str:
    """Return a place as a key of the file, such as clusters.east.credentials."""
    return ".".join(place)


def _is_embedded(pair: Pair) -> bool:
    return any(_EMBEDDED.match(pem.path) for pem in pair)


def _file(pem: PEMFile) -> str:
    """Return the file that holds a certificate or key: a kubeconfig, or its own."""
    found = _EMBEDDED.match(pem.path)
    return found[1] if found is not None else pem.path


def _signature(file: str) -> _Signature:
    """Return what changes with the file (it follows links, as of volumes in Kubernetes); None where there is none."""
    try:
        info = os.stat(file)
    except OSError:
        return None
    return (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)


def _content(file: str) -> bytes:
    """Return the contents of a regular file; raises OSError."""
    descriptor: Any = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is not a regular file", file)
        data = opened.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise OSError(0, f"it is larger than {_MAX_BYTES // 1024} KiB", file)
    return data
