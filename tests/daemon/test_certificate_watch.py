"""Certificates that are replaced on disk: when they are used, when the former ones stay, and what is said."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import NameOID
from twisted.internet.defer import Deferred, maybeDeferred

from mcproxy.config import model
from mcproxy.config.certificate_pairs import pairs_in
from mcproxy.config.load import load
from mcproxy.config.loaded import Loaded
from mcproxy.config.problem import ConfigErrors
from mcproxy.daemon.certificate_watch import PATIENCE, CertificateWatch
from mcproxy.observe.metrics.counts import MetricCounts
from tests.proxy import conftest
from tests.proxy.harness import CA, NAME, Harness, cluster, config, get, listener
from tests.support.clock import Clock
from tests.support.logged import captured_logs
from tests.upstream.https_server import NOT_DONE_YET, HTTPSServer

reactor, harness = conftest.reactor, conftest.harness


def issue(name: str, *, not_before: datetime | None = None, not_after: datetime | None = None) -> tuple[bytes, bytes]:
    """A certificate for a host, of a client of that common name, and its key."""
    made = CA.issue_cert(name, NAME, common_name=name, not_before=not_before, not_after=not_after)
    return made.cert_chain_pems[0].bytes(), made.private_key_pem.bytes()


def write(file: Path, content: bytes) -> None:
    """Replace a file as programs do that renew certificates."""
    new = file.with_name(f"{file.name}.new")
    new.write_bytes(content)
    new.rename(file)


def put_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def put_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@dataclass
class Daemon:
    """What the watch sees of a daemon."""

    config: model.Config
    serving: bool = True
    reloading: bool = False
    applied: list[model.Config] = field(default_factory=list)
    failure: Exception | None = None
    counts: MetricCounts = field(default_factory=MetricCounts)

    def notify_ready(self, status: str) -> None:
        raise AssertionError("nothing is reloaded")

    async def apply(self, config: model.Config) -> None:
        if self.failure is not None:
            raise self.failure
        self.applied.append(config)
        self.config = config


@dataclass
class Dependencies:
    reactor: Any
    path: str = "mcproxy.yaml"

    async def load(self, path: str) -> Loaded:
        return load(path, environ={})


class World:
    """A configuration with one certificate of each use, and the watch over its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        for name in ("listener", "client", "front", "webhook", "redis"):
            self.put(name, f"{name}.old")
        self.daemon = Daemon(self.read())
        self.watch = self.watch_of(self.daemon)

    def watch_of(self, daemon: Daemon) -> CertificateWatch:
        dependencies: Any = Dependencies(self.clock, str(self.folder / "mcproxy.yaml"))
        return CertificateWatch(daemon, dependencies, lambda: daemon.reloading, maybeDeferred)

    def put(self, name: str, host: str) -> tuple[bytes, bytes]:
        chain, key = issue(host)
        write(self.folder / f"{name}.crt", chain)
        write(self.folder / f"{name}.key", key)
        return chain, key

    def pem(self, file: str) -> model.PEMFile:
        return model.PEMFile(str(self.folder / file), (self.folder / file).read_bytes())

    def read(self) -> model.Config:
        def own(name: str) -> dict[str, Any]:
            return {"certificate": self.pem(f"{name}.crt"), "key": self.pem(f"{name}.key")}

        endpoint = model.EndpointConfig(name="a", scheme="https", host="10.0.0.1", port=443)
        shown = model.Certificate(
            name="c", chain=self.pem("listener.crt"), key=self.pem("listener.key"), server_names=("listener.old", NAME)
        )
        east = model.ClusterConfig(
            name="east",
            endpoints=(endpoint,),
            identity=model.UpstreamIdentity.REQUEST_HEADER,
            credentials=model.Credentials(**own("client")),
            front_proxy=model.FrontProxy(**own("front")),
        )
        webhook = model.Webhook(
            kubeconfig=model.KubeconfigReference("k", "x"),
            endpoint=endpoint,
            credentials=model.Credentials(**own("webhook")),
        )
        redis = model.RedisConfig(url="rediss://r", host="r", port=1, **own("redis"))
        return model.Config(
            certificates=(shown,),
            clusters=(east, replace(east, name="west", credentials=model.Credentials(), front_proxy=None)),
            authentication=(model.Authentication(name="all", webhook=webhook),),
            daemon=model.DaemonConfig(shared_state=model.SharedState(redis=redis)),
        )

    async def look(self) -> int:
        """Return how many configurations have been applied."""
        await self.watch.check()
        return len(self.daemon.applied)

    def in_use(self, *place: str) -> tuple[bytes, bytes]:
        chain, key = pairs_in(self.daemon.config)[place]
        return chain.data, key.data


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


CLIENT = ("clusters", "east", "credentials")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("listener", ("certificates", "c")),
        ("client", CLIENT),
        ("front", ("clusters", "east", "front_proxy")),
        ("webhook", ("authentication", "all", "webhook", "credentials")),
        ("redis", ("daemon", "shared_state", "redis")),
    ],
)
async def test_each_kind_is_used_once_it_was_replaced_and_nothing_else_changes(
    world: World, name: str, place: tuple[str, ...]
) -> None:
    before = world.daemon.config
    assert await world.look() == 0
    new = world.put(name, f"{name}.new")
    with captured_logs() as logged:
        assert await world.look() == 1
        assert await world.look() == 1
    assert world.in_use(*place) == new
    assert [line["event"] for line in logged] == ["certificates_renewed"]
    assert logged[0]["entries"] == ".".join(place)
    after = world.daemon.config
    assert after.clusters[1] is before.clusters[1]
    assert {key for key, pair in pairs_in(after).items() if pairs_in(before)[key] != pair} == {place}


async def test_the_names_of_a_listeners_certificate_follow_it_unless_they_were_written(world: World) -> None:
    world.put("listener", "listener.new")
    await world.look()
    assert world.daemon.config.certificates[0].server_names == ("listener.new", NAME)
    written = replace(world.daemon.config.certificates[0], server_names=("written.example.com",))
    world.daemon.config = replace(world.daemon.config, certificates=(written,))
    world.put("listener", "listener.newer")
    assert await world.look() == 2
    assert world.daemon.config.certificates[0].server_names == ("written.example.com",)


@pytest.mark.parametrize("first", ["crt", "key"])
async def test_a_pair_that_does_not_match_for_a_moment_keeps_the_old_one(world: World, first: str) -> None:
    old = world.in_use(*CLIENT)
    new = issue("client.new")
    contents = {"crt": new[0], "key": new[1]}
    write(world.folder / f"client.{first}", contents.pop(first))
    with captured_logs() as logged:
        assert await world.look() == 0
        assert world.in_use(*CLIENT) == old
        world.clock.advance(PATIENCE / 2)
        assert await world.look() == 0
        ((other, content),) = contents.items()
        write(world.folder / f"client.{other}", content)
        assert await world.look() == 1
    assert world.in_use(*CLIENT) == new
    assert [line["event"] for line in logged] == ["certificates_renewed"]


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lambda file: write(file, issue("other")[1]), "the key does not belong to the first certificate"),
        (lambda file: write(file, b""), "no PEM private key can be read"),
        (lambda file: file.unlink(), "cannot be read: No such file or directory"),
        (put_fifo, "cannot be read: it is not a regular file"),
        (put_folder, "cannot be read"),
        (lambda file: write(file, b"x" * 2**21), "cannot be read: it is larger than 1024 KiB"),
    ],
)
async def test_what_lasts_is_one_line_and_the_old_one_stays(
    world: World, spoil: Callable[[Path], Any], cause: str
) -> None:
    old, file = world.in_use(*CLIENT), world.folder / "client.key"
    assert await world.look() == 0
    spoil(file)
    with captured_logs() as logged:
        for _ in range(30):
            assert await world.look() == 0
            world.clock.advance(1.0)
    (line,) = logged
    assert line["event"] == "certificate_files_unusable"
    assert line["entry"] == "clusters.east.credentials"
    assert cause in line["cause"]
    assert world.watch.unusable == [{"entry": line["entry"], "cause": line["cause"]}]
    assert world.in_use(*CLIENT) == old
    if file.is_dir():
        file.rmdir()
    elif file.exists():
        file.unlink()
    new = world.put("client", "client.new")
    assert await world.look() == 1
    assert world.in_use(*CLIENT) == new
    assert world.watch.unusable == []


def day(month: int, number: int) -> datetime:
    return datetime(2026, month, number, tzinfo=UTC)


@pytest.mark.parametrize(
    ("dates", "cause"),
    [
        (
            {"not_before": datetime(2026, 1, 1, tzinfo=UTC), "not_after": datetime(2026, 9, 1, 10, tzinfo=UTC)},
            "expired on 2026-09-01 10:00 UTC",
        ),
        ({"not_before": day(12, 1)}, "is not valid before 2026-12-01 00:00 UTC"),
    ],
)
async def test_one_that_does_not_count_today_replaces_none_that_does(
    world: World, dates: dict[str, datetime], cause: str
) -> None:
    old, (chain, key) = world.in_use(*CLIENT), issue("client.new", **dates)
    write(world.folder / "client.crt", chain)
    write(world.folder / "client.key", key)
    with captured_logs() as logged:
        for _ in range(30):
            assert await world.look() == 0
            world.clock.advance(1.0)
    (line,) = logged
    assert line["cause"] == f"{world.folder}/client.crt: the certificate {cause}"
    assert world.in_use(*CLIENT) == old
    world.daemon.config = world.read()  # a restart: better than none
    chain, key = issue("client.newer", **dates)
    write(world.folder / "client.crt", chain)
    write(world.folder / "client.key", key)
    assert await world.look() == 1
    assert world.in_use(*CLIENT) == (chain, key)


async def test_one_that_counts_later_is_used_then(world: World) -> None:
    """The clock of the authority is ahead of this machine's."""
    soon = datetime.fromtimestamp(world.clock.wall_seconds(), UTC).replace(microsecond=0) + timedelta(seconds=20)
    old, (chain, key) = world.in_use(*CLIENT), issue("client.new", not_before=soon)
    write(world.folder / "client.crt", chain)
    write(world.folder / "client.key", key)
    with captured_logs() as logged:
        for _ in range(19):
            assert await world.look() == 0
            world.clock.advance(1.0)
        assert world.in_use(*CLIENT) == old
        world.clock.advance(2.0)
        assert await world.look() == 1
    assert world.in_use(*CLIENT) == (chain, key)
    assert world.watch.unusable == []
    assert [line["event"] for line in logged] == ["certificate_files_unusable", "certificates_renewed"]
    late = issue("client.late", not_before=soon + timedelta(days=1))
    write(world.folder / "client.crt", late[0])
    write(world.folder / "client.key", late[1])
    assert await world.look() == 1
    newest = world.put("client", "client.newest")  # what waited is not used in its place
    assert await world.look() == 2
    world.clock.advance(2 * 86400.0)
    assert await world.look() == 2
    assert world.in_use(*CLIENT) == newest


async def test_one_file_with_both(world: World) -> None:
    both = world.folder / "both.pem"
    write(both, b"".join(issue("client.old")))
    credentials = model.Credentials(certificate=world.pem("both.pem"), key=world.pem("both.pem"))
    clusters = (replace(world.daemon.config.clusters[0], credentials=credentials),)
    world.daemon.config = replace(world.daemon.config, clusters=clusters)
    assert await world.look() == 0
    chain, key = issue("client.new")
    write(both, key + chain)
    assert await world.look() == 1
    assert world.in_use(*CLIENT) == (key + chain, key + chain)


async def test_a_link_that_is_swapped_as_in_volumes_of_kubernetes(world: World) -> None:
    folder = world.folder
    for name in ("one", "two"):
        (folder / name).mkdir()
        for end, content in zip(("crt", "key"), issue(f"client.{name}"), strict=True):
            (folder / name / f"client.{end}").write_bytes(content)
    (folder / "..data").symlink_to("one")
    for end in ("crt", "key"):
        (folder / f"client.{end}").unlink()
        (folder / f"client.{end}").symlink_to(f"..data/client.{end}")
    world.daemon.config = world.read()
    assert await world.look() == 0
    (folder / "..new").symlink_to("two")
    (folder / "..new").rename(folder / "..data")
    assert await world.look() == 1
    assert world.in_use(*CLIENT)[0] == (folder / "two" / "client.crt").read_bytes()


async def test_what_changed_before_the_first_look_or_during_a_reload_is_seen(world: World) -> None:
    world.put("client", "client.new")
    world.daemon.reloading = True
    assert await world.look() == 0
    world.daemon.reloading = False
    assert await world.look() == 1


async def test_switched_off_or_not_serving_nothing_is_read(world: World) -> None:
    on = world.daemon.config
    world.daemon.config = replace(on, daemon=replace(on.daemon, watch_files=False))
    world.put("client", "client.new")
    assert await world.look() == 0
    world.daemon.config, world.daemon.serving = on, False
    assert await world.look() == 0
    world.daemon.serving = True
    assert await world.look() == 1


async def test_one_that_cannot_be_applied_is_tried_again(world: World) -> None:
    world.daemon.failure = OSError(5, "no more")
    assert await world.look() == 0
    world.put("client", "client.new")
    with captured_logs() as logged:
        for _ in range(20):
            assert await world.look() == 0
            world.clock.advance(1.0)
    assert [line["event"] for line in logged] == ["certificate_files_unusable"]
    world.daemon.failure = None
    assert await world.look() == 0
    world.clock.advance(60.0)
    assert await world.look() == 1


async def test_one_that_cannot_be_applied_is_tried_less_and_less_often(world: World) -> None:
    tried: list[float] = []

    async def apply(config: model.Config) -> None:
        tried.append(world.clock.seconds())
        raise OSError(5, "no more")

    world.daemon.apply = apply  # type: ignore[method-assign]
    world.put("client", "client.new")
    for _ in range(200):
        await world.look()
        world.clock.advance(1.0)
    assert [later - earlier for earlier, later in pairwise(tried)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


async def test_a_file_system_that_hangs_holds_up_nothing(world: World) -> None:
    """The files are looked at in a thread alone, and the loop waits for it."""
    hanging: list[Deferred[Any]] = []

    def in_thread(*call: Any) -> Deferred[Any]:
        hanging.append(Deferred())
        return hanging[-1]

    dependencies: Any = Dependencies(world.clock)
    watch = CertificateWatch(world.daemon, dependencies, lambda: False, in_thread)
    watch.start()
    world.clock.advance(100.0)
    assert len(hanging) == 1
    watch.stop()


async def test_a_loop_looks_each_second(world: World) -> None:
    world.watch.start()
    new = world.put("client", "client.new")
    world.clock.advance(1.0)
    assert world.in_use(*CLIENT) == new
    world.watch.stop()
    world.put("client", "client.newer")
    world.clock.advance(5.0)
    assert world.in_use(*CLIENT) == new


class TestAKubeconfig:
    TEXT = """version: 1
listeners: [{name: l, bind: "127.0.0.1:1"}]
clusters: [{name: east, identity: Proxy, kubeconfig: {file: k}}]
servers: [{name: s, default: true, backend: {cluster: east}}]
"""
    FORM = (
        "clusters: [{name: c, cluster: {server: 'https://10.0.0.1'}}]\n"
        "contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
    )

    def put(self, folder: Path, host: str, *, before: str = "") -> tuple[bytes, bytes]:
        chain, key = issue(host)
        data = [base64.b64encode(each).decode() for each in (chain, key)]
        user = f"{{name: u, user: {{client-certificate-data: {data[0]}, client-key-data: {data[1]}}}}}"
        write(folder / "k", f"{self.FORM}users: [{before}{user}]\n".encode())
        return chain, key

    def put_files(self, folder: Path, host: str) -> tuple[bytes, bytes]:
        chain, key = issue(host)
        write(folder / "u.crt", chain)
        write(folder / "u.key", key)
        user = "{name: u, user: {client-certificate: u.crt, client-key: u.key}}"
        write(folder / "k", f"{self.FORM}users: [{user}]\n".encode())
        return chain, key

    @pytest.mark.parametrize("put", ["put", "put_files"])
    async def test_its_certificate_is_used_once_it_was_replaced(self, world: World, put: str) -> None:
        folder, replace_it = world.folder, getattr(self, put)
        replace_it(folder, "client.old")
        (folder / "mcproxy.yaml").write_text(self.TEXT)
        world.daemon.config = load(str(folder / "mcproxy.yaml"), environ={}).config
        assert await world.look() == 0
        new = replace_it(folder, "client.new")
        assert await world.look() == 1
        assert world.in_use(*CLIENT) == new
        assert await world.look() == 1

    async def test_one_that_cannot_be_read_keeps_the_old_one(self, world: World) -> None:
        folder = world.folder
        old = self.put(folder, "client.old")
        (folder / "mcproxy.yaml").write_text(self.TEXT)
        world.daemon.config = load(str(folder / "mcproxy.yaml"), environ={}).config
        assert await world.look() == 0
        write(folder / "k", b"clusters: [")
        with pytest.raises(ConfigErrors):
            load(str(folder / "mcproxy.yaml"), environ={})
        with captured_logs() as logged:
            for _ in range(12):
                assert await world.look() == 0
                world.clock.advance(1.0)
        assert [line["event"] for line in logged] == ["certificate_files_unusable"]
        assert world.in_use(*CLIENT) == old
        new = self.put(folder, "client.new", before="{name: another, user: {}}, ")
        assert await world.look() == 1
        assert world.in_use(*CLIENT) == new


async def test_new_connections_of_both_sides_show_the_new_ones(harness: Harness, tmp_path: Path) -> None:
    server = HTTPSServer(harness.reactor, CA, "127.0.0.1")
    server.start()
    world = World(tmp_path)
    endpoint = model.EndpointConfig(name="a", scheme="https", host="127.0.0.1", port=server.port)
    first = config(
        [
            cluster(
                endpoint,
                identity=model.UpstreamIdentity.PROXY,
                tls=model.ClusterTLS(ca=model.PEMFile("ca", CA.cert_pem.bytes())),
                credentials=model.Credentials(certificate=world.pem("client.crt"), key=world.pem("client.key")),
            )
        ],
        listeners=[listener()],
    )
    shown = model.Certificate(
        name=NAME, chain=world.pem("listener.crt"), key=world.pem("listener.key"), server_names=(NAME,)
    )
    await harness.serve(replace(first, certificates=(shown,)))

    class Served(Daemon):
        async def apply(self, config: model.Config) -> None:
            await harness.serve(config)
            await super().apply(config)

    daemon = Served(replace(first, certificates=(shown,)))
    watch = world.watch_of(daemon)

    def peers() -> tuple[str | None, ...]:
        return tuple(each.client for each in server.seen if "pods" in each.uri)

    async def asks() -> str:
        client = await harness.asks(get())
        await harness.until(lambda: client.received.endswith(b"{}"), "the answer")
        leaf = client.transport.peer_certificate()  # type: ignore[union-attr]
        client.close()
        return str(leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)

    watches: list[Any] = []

    def respond(request: Any) -> Any:
        if "watch" not in request.uri.decode():
            return b"{}"
        watches.append(request)
        request.write(b"one")
        return NOT_DONE_YET

    server.respond = respond
    watching = await harness.asks(get(b"/api/v1/nodes?watch=true"))
    await harness.until(lambda: b"one" in watching.received, "the first event")
    assert await asks() == "listener.old"
    world.put("client", "client.new")
    world.put("listener", "listener.new")
    runtime = harness.service.runtime
    assert runtime is not None
    assert runtime.clusters["east"].unready_cause == ""
    await watch.check()
    runtime = harness.service.runtime
    assert runtime is not None
    assert runtime.clusters["east"].unready_cause == ""
    assert await asks() == "listener.new"
    assert peers() == ("client.old", "client.new")
    watches[0].write(b"two")
    await harness.until(lambda: b"two" in watching.received, "the next event")
    watches[0].finish()
    await harness.until(lambda: watching.received.endswith(b"0\r\n\r\n"), "the end")
    await server.stop()
