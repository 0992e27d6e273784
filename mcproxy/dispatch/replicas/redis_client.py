"""The agent's client of Redis: calls the script once for each limit, in as few round trips as possible.

All calls block, and are made only in the agent's thread. This is the only module that imports redis-py.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from cryptography.hazmat.primitives.serialization import Encoding
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from mcproxy.certificate_blocks import load_certificates, one_of_each_name
from mcproxy.config import model
from mcproxy.dispatch.replicas.script import Call, source
from mcproxy.net.hostname_verification import plain_name

TIMEOUT = 2.5
"""Timeout in seconds for connecting and for each response: half of a lease's lifetime, so that one retry is in time."""


class RedisUnavailable(Exception):
    """Redis cannot be used now. The message is the cause; `todo` is the remedy for operators."""

    def __init__(self, why: str, todo: str) -> None:
        super().__init__(why)
        self.todo = todo


class RedisEngine:
    """Calls `lease.lua` in a Redis or Valkey, or in a cluster of them."""

    def __init__(self, config: model.RedisConfig) -> None:
        """Connections are opened by the first call."""
        self._config = config
        self._script = source()
        self._digest = hashlib.sha1(self._script.encode(), usedforsecurity=False).hexdigest()
        self._client: Any = None
        self._files: dict[bytes, int] = {}
        self._authorities = [] if config.ca is None else _authorities(config.ca.data)

    def call(self, calls: Sequence[Call]) -> list[Any]:
        """Return the response to each call. Raises RedisUnavailable; any of the calls may have been executed anyway."""
        for _ in self._authorities[1:]:
            try:
                return self._try(calls)
            except RedisUnavailable as error:
                if "certificate verify failed" not in str(error):
                    raise
                self._close()
                self._authorities.append(self._authorities.pop(0))  # try another authority with the same name
        return self._try(calls)

    def _try(self, calls: Sequence[Call]) -> list[Any]:
        with _as_unavailable(self._config):
            if self._client is None:
                self._client = redis.Redis(**self._options(single=True))
            try:
                return self._call(calls)
            except (redis.exceptions.MovedError, redis.exceptions.AskError):
                self._close()  # the failure may concern only one node of a cluster
                if self._config.socket is not None:
                    why = (
                        f"{self._config.socket}: it is a node of a cluster, whose other nodes are reached by TCP alone"
                    )
                    raise RedisUnavailable(
                        why, "write redis:// or rediss:// and a node's host and port in url"
                    ) from None
                self._client = RedisCluster(**self._options(single=False))
                return self._call(calls)

    def close(self) -> None:
        """Close the connections."""
        try:
            self._close()
        except (redis.RedisError, OSError):
            pass
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def _close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            client.close()

    def _call(self, calls: Sequence[Call]) -> list[Any]:
        if isinstance(self._client, RedisCluster):
            pipelines: Any = self._client
            with pipelines.pipeline() as pipeline:  # sends to all nodes at the same time
                for call in calls:
                    pipeline.execute_command("EVAL", self._script, len(call.keys), *call.keys, *call.arguments)
                answers: list[Any] = pipeline.execute()
            return answers
        answers = self._pipeline(calls)
        if any(isinstance(answer, redis.exceptions.NoScriptError) for answer in answers):  # Redis restarted or flushed
            answers = self._pipeline(calls, load=True)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _pipeline(self, calls: Sequence[Call], *, load: bool = False) -> list[Any]:
        """Make the calls in one round trip; with `load` the first call loads the script for all calls."""
        with self._client.pipeline(transaction=False) as pipeline:
            for number, call in enumerate(calls):
                script = ("EVAL", self._script) if load and not number else ("EVALSHA", self._digest)
                pipeline.execute_command(*script, len(call.keys), *call.keys, *call.arguments)
            answers: list[Any] = pipeline.execute(raise_on_error=False)
        return answers

    def _options(self, *, single: bool) -> dict[str, Any]:
        config = self._config
        options: dict[str, Any] = {
            "username": config.username,
            "password": config.password.reveal() if config.password is not None else None,
            "socket_timeout": TIMEOUT,
            "socket_connect_timeout": TIMEOUT,
            "decode_responses": True,
            "protocol": 2,  # RESP3 needs HELLO, which Redis before version 6 lacks
            "client_name": "mcproxy",
        }
        if single:
            # Reopens an idle connection at once if Redis has closed it.
            options |= {
                "db": config.database,
                "retry": Retry(NoBackoff(), 1, supported_errors=(redis.exceptions.ConnectionError,)),
            }
        if config.socket is not None:
            return options | {"unix_socket_path": config.socket}
        options |= {"host": plain_name(config.host), "port": config.port, "socket_keepalive": True}
        return options | self._tls() if config.ca is not None else options

    def _tls(self) -> dict[str, Any]:
        """Return the options of TLS, with the contents that files had when the configuration was loaded."""
        config = self._config
        assert config.ca is not None
        options: dict[str, Any] = {
            "ssl": True,
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
            "ssl_ca_data": self._authorities[0],
            "ssl_include_verify_flags": [ssl.VERIFY_X509_PARTIAL_CHAIN],  # each certificate of caFile is an anchor
            "ssl_exclude_verify_flags": [ssl.VERIFY_X509_STRICT],  # Python 3.13 sets it; Go asks for no key identifiers
        }
        if config.certificate is not None and config.key is not None:
            # OpenSSL loads a client certificate only from files.
            options |= {"ssl_certfile": self._file(config.certificate), "ssl_keyfile": self._file(config.key)}
        return options

    def _file(self, pem: model.PEMFile) -> str:
        if pem.data not in self._files:
            self._files[pem.data] = fd = os.memfd_create("mcproxy-redis", os.MFD_CLOEXEC)
            os.write(fd, pem.data)
        return f"/proc/self/fd/{self._files[pem.data]}"


def _authorities(bundle: bytes) -> list[str]:
    """Return PEM bundles to try one after the other; there are several if two authorities have the same name."""
    try:
        choices = one_of_each_name(load_certificates(bundle))
    except ValueError:
        return [bundle.decode("latin-1")]  # OpenSSL will refuse it too
    return ["".join(one.public_bytes(Encoding.PEM).decode() for one in choice) for choice in choices]


@contextmanager
def _as_unavailable(config: model.RedisConfig) -> Iterator[None]:
    try:
        yield
    except (redis.RedisError, OSError, ValueError) as error:
        raise _explained(error, config) from error


# The beginning of an error message of Redis -> the remedy.
_TODO = {
    "SELECT is not allowed": "remove the database from url: a cluster has only one",
    "NOAUTH": "set passwordFile, and username where Redis has an ACL",
    "WRONGPASS": "see that username and passwordFile are Redis' own, then reload",
    "NOPERM": (
        "let the user run the script and its commands on the keys of the prefix: "
        "ACL SETUSER NAME ~{PREFIX* +eval +evalsha +time +@hash +@sortedset +pexpire "
        "+client|setname +select"
    ),
    "READONLY": "name the primary in url: this is a replica, or it became one",
    "OOM": "give Redis more maxmemory, or mcproxy a separate Redis",
    "LOADING": "wait: Redis is loading its data",
    "MASTERDOWN": "name the primary in url, and see that it runs",
    "CLUSTERDOWN": "see that all slots of the cluster are served",
    "MISCONF": "see why Redis cannot write its data to disk",
    "NOREPLICAS": "see that the replicas of Redis run",
    "BUSY": "see which script keeps Redis busy",
}


def _explained(error: Exception, config: model.RedisConfig) -> RedisUnavailable:
    where = config.socket or f"{config.host}:{config.port}"
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, redis.exceptions.BusyLoadingError):
        text, todo = f"LOADING {text}", _TODO["LOADING"]
    elif isinstance(error, redis.exceptions.ReadOnlyError):
        text, todo = f"READONLY {text}", _TODO["READONLY"]
    elif isinstance(error, redis.exceptions.OutOfMemoryError):
        text, todo = f"OOM {text}", _TODO["OOM"]
    elif isinstance(error, redis.exceptions.AuthenticationError):
        todo = _TODO["WRONGPASS" if config.password is not None else "NOAUTH"]
    elif isinstance(error, redis.exceptions.NoPermissionError):
        text, todo = f"NOPERM {text}", _TODO["NOPERM"]
    elif isinstance(error, redis.exceptions.TimeoutError):
        text = f"no answer within {TIMEOUT:g} s"
        todo = "see that Redis runs, is not overloaded, and can be reached from here"
    elif "certificate" in text.lower() or "ssl" in text.lower():
        todo = "see that caFile holds the authority of Redis' certificate, and that the certificate names its host"
    elif isinstance(error, redis.exceptions.ConnectionError | OSError):
        todo = "see that Redis runs, and can be reached from here"
    else:
        todo = next((todo for word, todo in _TODO.items() if text.startswith(word)), "see the log of Redis")
    return RedisUnavailable(f"{where}: {text}", todo)
