"""`mcproxy run --single-user`: runs a private aggregation layer for a developer's API server and a cluster's API.

It listens on loopback with a generated certificate and token. All files are in a folder to which only this user has
access, and which is removed at the end. It runs the ordinary daemon with a file generated from the arguments, so all
checks apply and the other commands work. A killed process leaves its folder, which no other user can read; the next
start removes it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pwd
import re
import secrets
import shlex
import shutil
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mcproxy.cli import FAILED, USAGE
from mcproxy.cli.single_user_files import (
    FRONT_PROXY,
    GROUP_VERSION,
    APIServer,
    Settings,
    config,
    kubeconfig,
    user_of,
    write_secrets,
)

PREFIX = "mcproxy-single-user-"
LOCK = "lock"
HOST = "127.0.0.1"
_UNLOCKED = 60.0
"""Seconds after which an unlocked folder belongs to a killed process; others lock it just after creating it."""
_NAME = re.compile(r"[A-Za-z0-9@._:/+=-]{1,253}")


class SingleUserError(Exception):
    """Single-user mode cannot start; str() has the cause and the remedy."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to those of `run`."""
    group = parser.add_argument_group("single user")
    group.add_argument(
        "--single-user",
        action="store_true",
        help="need no file: add an API server of your own to a cluster's API, for yourself alone, and print a "
        "kubeconfig; nothing is left at the end",
    )
    group.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="the kubeconfig of the cluster (default: $KUBECONFIG, else ~/.kube/config)",
    )
    group.add_argument("--context", metavar="CONTEXT", help="a context of it (default: the current one)")
    group.add_argument(
        "--api-service",
        metavar="G/V=URL",
        action="append",
        default=[],
        help="the API server of a group and version: garden.example.com/v1=https://127.0.0.1:8443 (repeatable)",
    )
    group.add_argument(
        "--api-service-ca", metavar="FILE", help="the authority of the certificates that the API servers serve with"
    )
    group.add_argument(
        "--api-service-insecure",
        action="store_true",
        help="do not verify these certificates; for API servers on this machine alone",
    )
    group.add_argument("--user", metavar="NAME", help="the user name that the API servers get (default: your own name)")
    group.add_argument(
        "--group", metavar="NAME", action="append", default=[], help="a group that they get with it (repeatable)"
    )
    group.add_argument(
        "--own-credentials",
        action="store_true",
        help="the API servers trust no front proxy: send them the credentials of the kubeconfig, as to the cluster",
    )


def misplaced(args: argparse.Namespace) -> str | None:
    """Return an option of single-user mode that is given without it."""
    given = {
        "--kubeconfig": args.kubeconfig,
        "--context": args.context,
        "--api-service": args.api_service,
        "--api-service-ca": args.api_service_ca,
        "--api-service-insecure": args.api_service_insecure,
        "--user": args.user,
        "--group": args.group,
        "--own-credentials": args.own_credentials,
    }
    return next((option for option, value in given.items() if value), None)


def run(args: argparse.Namespace) -> int:
    """Run until a signal; 2 for invalid arguments, else as `run`."""
    if "MCPROXY_HANDOVER" in os.environ:
        from mcproxy.daemon.upgrade import Takeover

        takeover = Takeover.from_environ(os.environ)
        if takeover is not None:
            takeover.failed(["a daemon in single-user mode is not upgraded; stop it and start it anew"])
        return FAILED
    try:
        settings = settings_of(args)
    except SingleUserError as error:
        print(f"mcproxy run: {error}", file=sys.stderr)
        return USAGE
    try:
        with private_folder(runtime_folder(os.environ)) as folder, _held_port() as port:
            return _run(settings, folder, port)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"mcproxy run: {where}{error.strerror or error}", file=sys.stderr)
        return FAILED


def settings_of(args: argparse.Namespace) -> Settings:
    """Return the settings in the arguments. Raises SingleUserError."""
    file = args.kubeconfig or os.environ.get("KUBECONFIG", "").split(":")[0] or "~/.kube/config"
    path = os.path.abspath(os.path.expanduser(file))
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise SingleUserError(
            f"the kubeconfig {path} cannot be read: {error.strerror}; name one by --kubeconfig"
        ) from None
    if not args.api_service:
        raise SingleUserError(
            "which API server? name it by --api-service, such as garden.example.com/v1=https://127.0.0.1:8443"
        )
    ca = None if args.api_service_ca is None else os.path.abspath(args.api_service_ca)
    if ca is not None and args.api_service_insecure:
        raise SingleUserError("--api-service-ca and --api-service-insecure exclude each other")
    if ca is not None and not os.access(ca, os.R_OK):
        raise SingleUserError(f"--api-service-ca: {ca} cannot be read")
    servers: dict[str, APIServer] = {}
    for text in args.api_service:
        server = _api_server(text, ca, insecure=args.api_service_insecure)
        if server.group_version in servers:
            raise SingleUserError(f"--api-service: {server.group_version} is named twice, and has one API server")
        servers[server.group_version] = server
    if args.own_credentials and (args.user or args.group):
        raise SingleUserError(
            "--own-credentials excludes --user and --group: API servers find out themselves whose credentials these are"
        )
    user = args.user or _own_name()
    for name in (user, *args.group):
        if not _NAME.fullmatch(name) or name.startswith("system:"):
            raise SingleUserError(f"{name!r} is no name for a user or group here; system: is Kubernetes' own")
    own = None
    if args.own_credentials:
        try:
            own = user_of(Path(path), args.context)
        except ValueError as error:
            raise SingleUserError(f"the kubeconfig {path} {error}") from None
    return Settings(path, args.context, tuple(servers.values()), user, tuple(args.group), own)


def _api_server(text: str, ca: str | None, *, insecure: bool) -> APIServer:
    from mcproxy.config.urls import AddressError, is_loopback, parse_endpoint

    group_version, equals, url = text.partition("=")
    if not equals or not GROUP_VERSION.fullmatch(group_version):
        raise SingleUserError(
            f"--api-service: {text!r} is no GROUP/VERSION=URL, such as garden.example.com/v1=https://127.0.0.1:8443"
        )
    try:
        endpoint = parse_endpoint(url)
    except AddressError as error:
        raise SingleUserError(
            f"--api-service: {url!r} {error.what}; {error.right or 'write https://HOST:PORT'}"
        ) from None
    if endpoint.scheme != "https":
        raise SingleUserError(
            f"--api-service: {url!r} has no TLS, and without it an API server cannot see who asks; write https://"
        )
    local = is_loopback(endpoint.host)
    if insecure and not local:
        raise SingleUserError(
            f"--api-service-insecure is for API servers on this machine, and {endpoint.host} is none; give the "
            "authority of its certificate in --api-service-ca"
        )
    if ca is None and not insecure and local:
        raise SingleUserError(
            f"who has signed the certificate of {url}? Give its authority in --api-service-ca FILE (k8s.io/apiserver "
            "writes apiserver.local.config/certificates/apiserver.crt), or write --api-service-insecure"
        )
    return APIServer(group_version, url, endpoint.host, endpoint.port, ca, insecure)


def _own_name() -> str:
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = ""
    return name if _NAME.fullmatch(name) else f"uid-{os.getuid()}"


# -- the private folder -----------------------------------------------------------------------------------------------


def runtime_folder(environ: Any) -> Path:
    """Return the parent of private folders: $XDG_RUNTIME_DIR if private to this user, else the temporary folder."""
    given = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(given):
        with contextlib.suppress(OSError):
            found = os.stat(given)
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
                return Path(given)
    return Path(tempfile.gettempdir())


@contextlib.contextmanager
def private_folder(above: Path) -> Iterator[Path]:
    """Create a folder for this user only, which is removed at the end; remove folders of killed processes."""
    remove_stale_folders(above)
    os.umask(0o077)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_stale_folders(above: Path) -> None:
    """Remove the folders of killed processes, whose locks are free."""
    with contextlib.suppress(OSError), os.scandir(above) as entries:
        for entry in entries:
            if not entry.name.startswith(PREFIX):
                continue
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if (
                    stat.S_ISDIR(found.st_mode)
                    and found.st_uid == os.geteuid()
                    and _is_stale(entry.path, found.st_mtime)
                ):
                    shutil.rmtree(entry.path, ignore_errors=True)


def _is_stale(folder: str, made: float) -> bool:
    try:
        lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return time.time() - made > _UNLOCKED
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


# -- the daemon -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _held_port() -> Iterator[int]:
    """Yield a port that the kernel assigns to no other process until the daemon listens on it."""
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after bind: only binds to this port may share it
        yield int(holder.getsockname()[1])


def _run(settings: Settings, folder: Path, port: int) -> int:
    from mcproxy.daemon.config_process import ConfigReader

    reader = ConfigReader()
    reader.start()
    token = secrets.token_urlsafe(32)
    ca = write_secrets(folder, settings, token)
    (folder / "mcproxy.yaml").write_text(config(settings, folder, port))
    (folder / "kubeconfig").write_text(kubeconfig(port, ca, token))
    from mcproxy.daemon.main import run as run_daemon
    from mcproxy.daemon.service import SingleProcessService

    over = threading.Event()
    announcing = threading.Thread(target=_announce, args=(settings, folder, port, over), daemon=True)
    announcing.start()
    try:
        return run_daemon(
            str(folder / "mcproxy.yaml"), load=reader.load, make_service=SingleProcessService, hangup_stops=True
        )
    finally:
        over.set()
        announcing.join()


def _announce(settings: Settings, folder: Path, port: int, over: threading.Event) -> None:
    """When the daemon serves, print instructions for its use."""
    while not _accepts(HOST, port):
        if over.wait(0.02):
            return
    file, authority = (shlex.quote(str(folder / name)) for name in ("kubeconfig", "front-proxy-ca.crt"))
    trusted = [] if settings.own is not None else [f"  front proxy CA   {folder / 'front-proxy-ca.crt'}"]
    lines = [
        f"A private API of {settings.kubeconfig} with " + ", ".join(each.group_version for each in settings.servers),
        "",
        f"  kubeconfig       {folder / 'kubeconfig'}",
        *trusted,
        f"  configuration    {folder / 'mcproxy.yaml'}",
        "",
        "Use it, for example:",
        f"  export KUBECONFIG={file}",
        "  kubectl api-resources",
        "",
    ]
    if settings.own is not None:
        lines += [
            "You go to API servers as you are: they get the credentials of your kubeconfig, and ask who you are and",
            "what you may do as their --authentication-kubeconfig and --authorization-kubeconfig say.",
        ]
    else:
        lines += [
            f"It tells API servers the user {settings.user} in X-Remote-User. One that is made with k8s.io/apiserver "
            "believes it with",
            f"  --requestheader-client-ca-file={authority} --requestheader-allowed-names={FRONT_PROXY} \\",
            f"  --authentication-kubeconfig={file} --authorization-kubeconfig={file} --authentication-skip-lookup",
            "To one that you cannot start so you go as you are with --own-credentials.",
        ]
    for server in settings.servers:
        if not _accepts(server.host, server.port):
            lines += [
                "",
                f"Nothing answers at {server.url} yet: requests for {server.group_version} are 503 until it does.",
            ]
    print("\n".join([*lines, "", "Ctrl-C ends it and leaves nothing behind.", "ready"]), flush=True)


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False
