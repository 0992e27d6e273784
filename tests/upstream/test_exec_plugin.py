"""When an exec plugin is run: once for all who wait, early before expiry, after a 401, and not in a storm."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import formatEvent
from twisted.python.failure import Failure

from mcproxy.config import model
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.exec_plugin import ExecCredentials
from mcproxy.upstream.exec_process import PluginNotFound, PluginProblem, PluginResult, PluginRunner
from tests.support.clock import Clock
from tests.support.logged import captured_logs
from tests.upstream.fakes import FakeRunner, cluster_config
from tests.upstream.test_exec_credential import V1, pem_pair

PLUGIN = model.ExecPlugin(command="/opt/get-token", args=("--east",), install_hint="install it\nfrom the shelf")


class Bench:
    """A source with a clock and a runner that the test holds."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.runner = FakeRunner()
        runner: Any = self.runner
        self.source = ExecCredentials(PLUGIN, cluster_config(), None, clock=self.clock, runner=runner)

    def wait(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self.source.ready())

    def give(self, life: float | None = None, **status: str) -> None:
        """End the newest run with a credential that is good for `life` seconds."""
        if life is not None:
            moment = datetime.fromtimestamp(self.clock.wall_seconds() + life, UTC)
            status["expirationTimestamp"] = moment.isoformat()
        output = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status}).encode()
        self.runner.runs[-1].callback(PluginResult(0, output, ""))

    def start(self, token: str, life: float | None = None) -> None:
        """Bring the source to its first credential."""
        done = self.wait()
        self.give(life, token=token)
        assert done.called

    @property
    def runs(self) -> int:
        return len(self.runner.runs)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # a cause says whether it can be written


@pytest.fixture
def bench() -> Bench:
    return Bench()


def cause_of(waiting: Deferred[None]) -> str:
    caught: list[str] = []

    def failed(failure: Failure) -> None:
        assert isinstance(failure.value, CredentialError)
        caught.append(failure.value.cause)

    waiting.addErrback(failed)
    assert caught, "it has not failed"
    return caught[0]


def test_it_is_not_run_before_it_is_needed(bench: Bench) -> None:
    assert bench.runs == 0
    assert not bench.source.is_ready
    with pytest.raises(CredentialError, match="has not been run yet"):
        bench.source.authorization()


def test_all_who_wait_share_one_run(bench: Bench) -> None:
    waiting = [bench.wait() for _ in range(3)]
    assert bench.runs == 1
    bench.give(token="t1")
    assert all(each.called for each in waiting)
    assert bench.source.authorization() == b"Bearer t1"


def test_one_who_gives_up_waiting_does_not_end_the_run(bench: Bench) -> None:
    first, second = bench.wait(), bench.wait()
    cancelled: list[Failure] = []
    first.addErrback(cancelled.append)
    first.cancel()
    assert isinstance(cancelled[0].value, CancelledError)
    bench.give(token="t1")
    assert second.called
    assert bench.source.is_ready


def test_the_plugin_gets_the_input_of_the_protocol(bench: Bench) -> None:
    bench.wait()
    argv, env = bench.runner.asked[0]
    assert argv == ["/opt/get-token", "--east"]
    assert json.loads(env["KUBERNETES_EXEC_INFO"])["kind"] == "ExecCredential"


def test_without_expiry_it_is_run_once(bench: Bench) -> None:
    bench.start("t1")
    bench.clock.advance(1e6)
    assert bench.source.authorization() == b"Bearer t1"
    assert bench.runs == 1


def test_a_new_one_is_fetched_behind_the_old_one_before_it_expires(bench: Bench) -> None:
    bench.start("t1", life=3600)
    bench.clock.advance(3600 - 61)
    bench.source.authorization()
    assert bench.runs == 1
    bench.clock.advance(2)
    assert bench.source.is_ready
    assert bench.source.authorization() == b"Bearer t1"
    assert bench.runs == 2
    bench.give(3600, token="t2")
    assert bench.source.authorization() == b"Bearer t2"


def test_a_short_lived_one_is_not_renewed_all_the_time(bench: Bench) -> None:
    bench.start("t1", life=30)
    bench.clock.advance(20)
    bench.source.authorization()
    assert bench.runs == 1
    bench.clock.advance(5)
    bench.source.authorization()
    assert bench.runs == 2


def test_an_expired_one_is_not_used(bench: Bench) -> None:
    bench.start("t1", life=100)
    bench.clock.advance(100)
    assert not bench.source.is_ready
    with pytest.raises(CredentialError, match="expired"):
        bench.source.authorization()
    waiting = bench.wait()
    bench.give(100, token="t2")
    assert waiting.called
    assert bench.source.authorization() == b"Bearer t2"


def test_a_401_runs_it_again_before_the_next_request(bench: Bench) -> None:
    bench.start("t1")
    bench.clock.advance(60)
    assert bench.source.invalidate(b"Bearer t1")
    assert not bench.source.is_ready
    waiting = bench.wait()
    bench.give(token="t2")
    assert waiting.called
    assert bench.source.authorization() == b"Bearer t2"


def test_a_storm_of_401s_does_not_run_it_in_a_storm(bench: Bench) -> None:
    bench.start("t1")
    bench.clock.advance(60)
    bench.source.invalidate(b"Bearer t1")
    bench.wait()
    bench.give(token="t1")
    assert not bench.source.invalidate(b"Bearer t1")
    assert bench.source.is_ready


def test_a_401_for_an_older_token_is_worth_a_try_with_the_newer(bench: Bench) -> None:
    bench.start("t2")
    assert bench.source.invalidate(b"Bearer t1")
    assert bench.source.is_ready
    assert bench.runs == 1


def test_a_failed_run_fails_all_waiters_and_is_logged_once(bench: Bench) -> None:
    with captured_logs() as events:
        waiting = [bench.wait(), bench.wait()]
        bench.runner.runs[0].callback(PluginResult(1, b"s3cret", "no such session"))
        for each in waiting:
            assert cause_of(each) == (
                "the exec plugin /opt/get-token ended with status 1: no such session; install it from the shelf"
            )
    assert len(events) == 1
    assert "s3cret" not in formatEvent(events[0])


def test_a_broken_plugin_is_not_run_for_every_request(bench: Bench) -> None:
    waiting = bench.wait()
    bench.runner.runs[0].errback(PluginProblem("it hangs"))
    assert "it hangs" in cause_of(waiting)
    assert "it hangs" in cause_of(bench.wait())
    assert bench.runs == 1
    bench.clock.advance(5)
    again = bench.wait()
    assert bench.runs == 2
    bench.give(token="t1")
    assert again.called
    assert bench.source.authorization() == b"Bearer t1"


def test_a_missing_command_comes_with_the_hint(bench: Bench) -> None:
    waiting = bench.wait()
    bench.runner.runs[0].errback(PluginNotFound("the command get-token was not found"))
    assert cause_of(waiting) == "the command get-token was not found; install it from the shelf"


def test_a_run_that_fails_after_a_401_leaves_the_old_one_in_use(bench: Bench) -> None:
    bench.start("t1")
    bench.clock.advance(60)
    bench.source.invalidate(b"Bearer t1")
    waiting = bench.wait()
    bench.runner.runs[-1].errback(PluginProblem("it hangs"))
    assert waiting.called
    assert bench.source.authorization() == b"Bearer t1"


def test_a_new_certificate_is_announced_and_the_same_one_is_not(bench: Bench) -> None:
    chain, key = pem_pair()
    announced: list[None] = []
    forget = bench.source.on_certificate_change(lambda: announced.append(None))
    for _ in range(2):
        Deferred.fromCoroutine(bench.source.refresh())
        bench.give(clientCertificateData=chain, clientKeyData=key)
        assert len(announced) == 1
    forget()
    Deferred.fromCoroutine(bench.source.refresh())
    bench.give(token="t")
    assert len(announced) == 1
    assert bench.source.certificate is None


def test_repr_shows_no_secret(bench: Bench) -> None:
    bench.start("s3cret")
    assert "s3cret" not in repr(bench.source)


async def test_a_real_script_gives_a_real_token(tmp_path: Path, reactor: Any) -> None:
    text = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "real"}})
    (tmp_path / "plugin.sh").write_text(f"#!/bin/sh\necho '{text}'\n")
    (tmp_path / "plugin.sh").chmod(0o755)
    plugin = model.ExecPlugin(command="./plugin.sh", working_dir=str(tmp_path))
    source = ExecCredentials(plugin, cluster_config(), None, clock=reactor, runner=PluginRunner(reactor))
    await source.ready()
    assert source.authorization() == b"Bearer real"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (1, "ended with status 1"),
        (-9, "was ended by SIGKILL"),
        (-31, "was ended by SIGSYS: a system call"),
        (-99, "signal 99"),
    ],
)
def test_the_cause_says_how_the_plugin_ended(bench: Bench, status: int, said: str) -> None:
    waiting = bench.wait()
    bench.runner.runs[-1].callback(PluginResult(status, b"", "broken"))
    assert said in cause_of(waiting)


@pytest.mark.parametrize("home", [None, "", "/nowhere"])
def test_the_cause_says_if_the_plugin_has_no_home_to_write(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    waiting = bench.wait()
    bench.runner.runs[-1].callback(PluginResult(1, b"", "mkdir: cannot create directory"))
    assert f"(its HOME, {home or 'not set'}, is not a folder that it can write to)" in cause_of(waiting)


def test_another_complaint_does_not_blame_the_home(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nowhere")
    waiting = bench.wait()
    bench.runner.runs[-1].callback(PluginResult(1, b"", "the issuer answered 401 Unauthorized"))
    assert "HOME" not in cause_of(waiting)


def test_a_home_that_can_be_written_is_no_cause(bench: Bench) -> None:
    waiting = bench.wait()
    bench.runner.runs[-1].callback(PluginResult(1, b"", "broken"))
    assert "HOME" not in cause_of(waiting)
