"""The credential of an exec plugin: runs the plugin on first use, before the credential expires, and after a 401.

Only one run is in flight at a time, shared by all requests that wait. A valid credential is used while the next one is
fetched in the background; requests wait only if the credential has expired or if there is none. After a failed run, no
run starts for a few seconds, so that a broken plugin is not started for every request.

A plugin knows its configuration and the issuer's response, and some plugins print both to stderr when they fail. In the
log, text that looks like a secret is replaced (`redacted`). Other text stays, for operators. Clients never see any of
it.
"""

from __future__ import annotations

import base64
import codecs
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.config import model
from mcproxy.net.wall_time import wall_seconds
from mcproxy.upstream.credentials import CredentialError, CredentialSource, bearer
from mcproxy.upstream.exec_process import PluginNotFound, PluginProblem, PluginRunner
from mcproxy.upstream.tls import ClientCertificate

# The exec credential plugin protocol of client-go: encodes the input and parses the output.
#
# Source: client.authentication.k8s.io v1 and v1beta1 (KEP-541; k8s.io/client-go/plugin/pkg/client/auth/exec).
# Nothing here runs a process or reads a clock; times are seconds since the epoch.

_MOST_YAML = 256 * 1024  # maximum of bytes; a token and a certificate have some thousand


@dataclass(frozen=True, slots=True)
class ExecStatus:
    """A plugin's output. `expires`: in seconds since the epoch; None: the credential is valid until it is refused."""

    header: bytes | None = field(repr=False)
    certificate: ClientCertificate | None
    expires: float | None


def exec_info(plugin: model.ExecPlugin, cluster: model.ClusterConfig) -> str:
    """Return the value of KUBERNETES_EXEC_INFO; it describes the cluster only with provideClusterInfo."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = _cluster_info(cluster)
        if plugin.cluster_config is not None:
            spec["cluster"]["config"] = json.loads(plugin.cluster_config)
    return json.dumps({"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec})


def _cluster_info(cluster: model.ClusterConfig) -> dict[str, Any]:
    info: dict[str, Any] = {"server": cluster.endpoints[0].url}
    if cluster.tls.server_name:
        info["tls-server-name"] = cluster.tls.server_name
    if cluster.tls.insecure_skip_verify:
        info["insecure-skip-tls-verify"] = True
    if cluster.tls.ca is not None:
        info["certificate-authority-data"] = base64.b64encode(cluster.tls.ca.data).decode()
    if cluster.proxy is not None:
        info["proxy-url"] = _proxy_url(cluster.proxy)
    return info


def _proxy_url(proxy: model.HTTPProxy) -> str:
    """Return the URL of a proxy with user and password, as client-go passes it to plugins."""
    if proxy.user is None or proxy.password is None:
        return proxy.url
    user, password = quote(proxy.user, safe=""), quote(proxy.password.reveal(), safe="")
    return proxy.url.replace("://", f"://{user}:{password}@", 1)


def parse_exec_credential(output: bytes, plugin: model.ExecPlugin) -> ExecStatus:
    """Parse a plugin's output. Raises `CredentialError`, whose message never contains the output."""
    origin = f"the exec plugin {plugin.command}"
    document = _document(output, origin)
    if not isinstance(document, dict) or document.get("kind") != "ExecCredential":
        raise CredentialError(f"{origin} printed something other than an ExecCredential")
    if document.get("apiVersion") != plugin.api_version:
        raise CredentialError(f"{origin} answered in another apiVersion than the configured {plugin.api_version}")
    status = document.get("status")
    if not isinstance(status, dict):
        raise CredentialError(f"{origin} printed no status")
    token = _text(status, "token", origin)
    certificate = _certificate(status, origin)
    if not token and certificate is None:
        raise CredentialError(f"{origin} gave neither a token nor a client certificate")
    header = bearer(token, origin) if token else None
    return ExecStatus(header, certificate, _expiry(status, origin))


def _document(output: bytes, origin: str) -> Any:
    """Decode JSON, or YAML if the output does not begin as a JSON object; client-go distinguishes them in this way."""
    try:
        if not output.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{"):
            output = _yaml_as_json(output, origin)
        return json.loads(output)
    except (ValueError, RecursionError):
        raise CredentialError(f"{origin} did not print an ExecCredential in JSON or YAML") from None


def _yaml_as_json(output: bytes, origin: str) -> bytes:
    """Convert YAML to JSON. Raises CredentialError and ValueError."""
    import yaml  # imported here because it takes a megabyte, and only daemons with such a plugin need it

    from mcproxy.kube import yaml_nodes

    if len(output) > _MOST_YAML:
        raise CredentialError(f"{origin} printed more than {_MOST_YAML} bytes of YAML")
    try:
        return yaml_nodes.to_json(output.decode())
    except yaml_nodes.YAMLLimitExceeded as error:
        raise CredentialError(f"{origin} printed YAML that cannot be read here: {error}") from None
    except yaml.YAMLError as error:
        raise ValueError(error) from None


def _text(status: dict[str, Any], key: str, origin: str) -> str:
    value = status.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CredentialError(f"{origin}: status.{key} is not a string")
    if not value.isascii():  # tokens, PEM and times are ASCII; JSON can contain half a surrogate pair
        raise CredentialError(f"{origin}: status.{key} has other characters than ASCII")
    return value


def _certificate(status: dict[str, Any], origin: str) -> ClientCertificate | None:
    chain, key = (_text(status, name, origin).encode() for name in ("clientCertificateData", "clientKeyData"))
    if not chain and not key:
        return None
    if not chain or not key:
        raise CredentialError(f"{origin} gave one of clientCertificateData and clientKeyData without the other")
    try:
        leaf = x509.load_pem_x509_certificates(chain)[0]
        private = load_pem_private_key(key, None)
        shape = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        fits = leaf.public_key().public_bytes(*shape) == private.public_key().public_bytes(*shape)
    except (ValueError, TypeError, IndexError, x509.InvalidVersion, UnsupportedAlgorithm):
        raise CredentialError(f"{origin} gave a client certificate or key that is not PEM, or encrypted") from None
    if not fits:
        raise CredentialError(f"{origin} gave a client certificate and a key that do not belong together")
    return ClientCertificate(chain, key)


def _expiry(status: dict[str, Any], origin: str) -> float | None:
    text = _text(status, "expirationTimestamp", origin)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise CredentialError(f"{origin}: status.expirationTimestamp is not an RFC 3339 time") from None


log = Logger(__name__)

_TIMEOUT = 30.0  # maximum of seconds for one run; cloud plugins sometimes take ten
_PAUSE = 5.0  # seconds between runs after a failure, and between runs forced by a 401
_MAX_COMPLAINT = 200  # maximum of characters of a plugin's stderr that are logged
_EARLY = 60.0  # a credential is renewed this many seconds before it expires, or at four fifths of its lifetime

MASK = "***"

#: Texts on stderr that can mean that HOME is not writable.
_ABOUT_FILES = re.compile(r"(?i)home|cache|permission|read-only|no such file|not a directory|mkdir|folder")

_SHORTEST = 6  # minimum length of a configured value that is masked everywhere; shorter ones would mask words

_SECRET_WORD = (
    r"(?:token|secret|passw(?:or)?d|passphrase|pwd|credentials?|api[_-]?key|private[_-]?key|assertion|sig|code)"
)
_FLAG = re.compile(rf"--?[\w-]*{_SECRET_WORD}[\w-]*", re.IGNORECASE)
_PATTERNS = (
    # a JWT, and other text in base64 or hex that is too long for a word, a part of a path or a UUID
    re.compile(r"eyJ[\w-]+(?:\.[\w-]*)*"),
    re.compile(r"(?<![\w/+=.-])(?=[\w+=-]*\d)(?=[\w+=-]*[A-Za-z])[\w+=-]{37,}"),
    # NAME=VALUE, "name": "value", --name value, for names of secrets
    re.compile(rf"(?i)((?<![A-Za-z])[\w-]*{_SECRET_WORD}[\w-]*[\"']?\s*[=:]\s*[\"']?)(?!\s)[^\s\"',;&]+"),
    re.compile(rf"(?i)(--?[\w-]*{_SECRET_WORD}[\w-]*\s+[\"']?)[^\s\"'-][^\s\"']*"),
    re.compile(r"(?i)((?:bearer|basic)\s+)[^\s\"',;]+"),
    # user:password@ in a URL
    re.compile(r"(://)[^\s/@]+(?=@)"),
)


class ExecCredentials(CredentialSource):
    """The credential of one cluster that has an exec plugin."""

    def __init__(
        self,
        plugin: model.ExecPlugin,
        cluster: model.ClusterConfig,
        configured: ClientCertificate | None,
        *,
        clock: IReactorTime,
        runner: PluginRunner,
    ) -> None:
        """`clock`: a reactor, also for the time of day. `configured`: the client certificate to use if the plugin
        returns none.
        """
        self._plugin = plugin
        self._cluster_name = cluster.name
        self._info = exec_info(plugin, cluster)
        self._configured = configured
        self._clock = clock
        self._runner = runner
        self._status: ExecStatus | None = None
        self._renew_at: float | None = None
        self._outdated = False  # whether the cluster responded with 401 to the credential in `_status`
        self._run_not_before = 0.0
        self._error: CredentialError | None = None
        self._running: Deferred[None] | None = None
        self._waiting: list[Deferred[None]] = []
        self._observers: list[Callable[[], None]] = []
        self._closed = False

    @property
    def certificate(self) -> ClientCertificate | None:
        given = None if self._status is None else self._status.certificate
        return given or self._configured

    @property
    def expires_at(self) -> float | None:
        return None if self._status is None else self._status.expires

    @property
    def is_ready(self) -> bool:
        status = self._status
        if status is None or self._outdated:
            return False
        return status.expires is None or wall_seconds(self._clock) < status.expires

    @property
    def header(self) -> bytes | None:
        return None if self._status is None else self._status.header

    def authorization(self) -> bytes | None:
        status = self._status
        if status is None:
            raise self._error or CredentialError(f"the exec plugin {self._plugin.command} has not been run yet")
        now = wall_seconds(self._clock)
        if status.expires is not None and now >= status.expires:
            raise self._error or CredentialError(
                f"the credential of the exec plugin {self._plugin.command} has expired"
            )
        if self._renew_at is not None and now >= self._renew_at:
            self._run_if_due()
        return status.header

    async def ready(self) -> None:
        """Wait for a run of the plugin unless the credential is still valid. Raises `CredentialError`."""
        if self.is_ready:
            return
        self._run_if_due()
        if self._running is not None:
            await self._end_of_run()
        if self._error is not None and not self.is_ready:
            raise self._error

    async def refresh(self) -> None:
        self._start()
        if self._running is not None:
            await self._end_of_run()
        if self._error is not None:
            raise self._error

    def invalidate(self, rejected: bytes | None = None) -> bool:
        """Run the plugin again before the next request, unless it has just run because of a 401."""
        if self._status is None:
            return False
        if rejected is not None and rejected != self._status.header:
            return True
        if self._clock.seconds() < self._run_not_before:
            return False
        self._outdated = True
        return True

    def on_certificate_change(self, notify: Callable[[], None]) -> Callable[[], None]:
        self._observers.append(notify)
        return lambda: self._observers.remove(notify)

    def close(self) -> None:
        self._closed = True

    def _end_of_run(self) -> Deferred[None]:
        waiter: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiter)
        return waiter

    def _run_if_due(self) -> None:
        if self._clock.seconds() >= self._run_not_before and not self._closed:
            self._start()

    def _start(self) -> None:
        if self._running is None:
            self._running = Deferred.fromCoroutine(self._run())
            self._running.addErrback(self._failed)
            self._running.addBoth(self._ended)

    async def _run(self) -> None:
        argv = [_command(self._plugin), *self._plugin.args]
        env = {**dict(self._plugin.env), "KUBERNETES_EXEC_INFO": self._info}
        try:
            result = await self._runner.run(argv, env=env, cwd=self._plugin.working_dir, timeout=_TIMEOUT)
        except PluginNotFound as problem:
            raise CredentialError(_with_hint(str(problem), self._plugin)) from None
        except PluginProblem as problem:
            raise CredentialError(f"exec plugin: {problem}") from None
        if result.exit_status != 0:
            complaint = redacted(result.complaint, self._secrets())[:_MAX_COMPLAINT]
            complaint = complaint and f": {complaint}"
            sentence = f"the exec plugin {self._plugin.command} {_end(result.exit_status)}{complaint}"
            sentence += _home_problem({**os.environ, **env}.get("HOME"), complaint)
            raise CredentialError(_with_hint(sentence, self._plugin))
        self._select(parse_exec_credential(result.output, self._plugin))

    def _secrets(self) -> list[str]:
        """Return the values of the configuration and of the credential in use that must not be logged."""
        header = self.header
        token = [] if header is None else [header.decode("latin-1").partition(" ")[2]]
        return [*secret_arguments(self._plugin.args), *(value for _, value in self._plugin.env), *token]

    def _select(self, status: ExecStatus) -> None:
        now = wall_seconds(self._clock)
        before = self.certificate
        self._status, self._error, self._outdated = status, None, False
        self._renew_at = None
        if status.expires is not None:
            life = max(0.0, status.expires - now)
            self._renew_at = status.expires - min(_EARLY, life / 5)
        self._run_not_before = self._clock.seconds() + _PAUSE
        if self.certificate != before:
            for notify in list(self._observers):
                notify()

    def _failed(self, failure: Failure) -> None:
        error = failure.value
        if not isinstance(error, CredentialError):
            error = CredentialError(f"exec plugin: {type(error).__name__}")
        self._error = error
        self._outdated = False  # try the old credential again, because the 401 may have been the cluster's fault
        self._run_not_before = self._clock.seconds() + _PAUSE
        log.error(
            "the credential plugin of a cluster failed",
            event="credential_plugin_failed",
            cluster=self._cluster_name,
            cause=error.cause,
            todo="run the plugin's command by hand as the daemon's user",
            log_subject=("credential", self._cluster_name, error.cause),
        )

    def _ended(self, _: None) -> None:
        self._running = None
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.callback(None)

    def __repr__(self) -> str:
        return f"<ExecCredentials {self._plugin.command}>"


def _command(plugin: model.ExecPlugin) -> str:
    """Return the command to run: a path is relative to the file that contains it; a bare name is looked up in PATH."""
    if os.sep in plugin.command:
        return os.path.join(plugin.working_dir or "", plugin.command)
    return shutil.which(plugin.command) or plugin.command


def _end(status: int) -> str:
    """Describe how a plugin ended; a negative status is a signal's number, as in `subprocess`."""
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    by_filter = ": a system call that the unit's SystemCallFilter= does not let pass" if name == "SIGSYS" else ""
    return f"was ended by {name}{by_filter}"


def _home_problem(home: str | None, complaint: str) -> str:
    """Return the problem of a plugin's HOME, in which many plugins keep a cache; "" if there is none, or if the text on
    stderr has another cause.
    """
    if (complaint and not _ABOUT_FILES.search(complaint)) or (home and os.access(home, os.W_OK | os.X_OK)):
        return ""
    return f" (its HOME, {home or 'not set'}, is not a folder that it can write to)"


def _with_hint(sentence: str, plugin: model.ExecPlugin) -> str:
    hint = " ".join(plugin.install_hint.split())
    return f"{sentence}; {hint}" if hint else sentence


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without `secrets` (configured values) and without text that looks like a secret."""
    for secret in sorted({secret for secret in secrets if len(secret) >= _SHORTEST}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(lambda match: (match[1] if match.lastindex else "") + MASK, text)
    return text


def secret_arguments(arguments: Iterable[str]) -> list[str]:
    """Return the arguments of a command that are values of flags like --client-secret."""
    found: list[str] = []
    follows = False
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if follows and not argument.startswith("-"):
            found.append(argument)
        follows = False
        if _FLAG.fullmatch(name):
            if separator:
                found.append(value)
            follows = not separator
    return found
