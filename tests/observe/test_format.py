"""An access record becomes one line that can be read back, whatever a client put into it."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.observe.access_log import combined_formatter, json_formatter
from mcproxy.observe.log_values import LONGEST, mask_query
from mcproxy.observe.record import AccessRecord


def record(**fields: Any) -> AccessRecord:
    least: dict[str, Any] = {
        "time": 1795261320.1234,
        "client": "10.1.2.3",
        "method": "GET",
        "uri": "/api",
        "status": 200,
    }
    return AccessRecord(**{**least, **fields})


def json_line(process: str = "") -> Callable[[AccessRecord], str]:
    return json_formatter(process)


def combined_line(process: str = "") -> Callable[[AccessRecord], str]:
    return combined_formatter(process)


def test_json_line_has_every_field() -> None:
    line = json_line()(
        record(
            uri="/apis/apps/v1/deployments?watch=true", reason="client_closed", server="s", cluster="east",
            endpoint="a", user="jane", verb="watch", resource="deployments.apps", request_id="1f",
            user_agent="kubectl", bytes_in=1,
            bytes_out=2, first_byte=0.0125, total=3.5, upgraded=True, cached=True, protocol="HTTP/2.0",
            groups=3, upstream=0.5, upstream_status=201, attempts=2, trace_id="ab", api_service="apps/v1",
        )
    )  # fmt: skip
    assert json.loads(line) == {
        "ts": "2026-11-21T11:42:00.123Z", "client": "10.1.2.3", "method": "GET", "protocol": "HTTP/2.0",
        "uri": "/apis/apps/v1/deployments?watch=true", "server": "s", "cluster": "east", "endpoint": "a",
        "user": "jane",
        "status": 200, "reason": "client_closed", "bytesIn": 1, "bytesOut": 2, "totalSeconds": 3.5, "upgraded": True,
        "requestId": "1f", "verb": "watch", "resource": "deployments.apps", "userAgent": "kubectl",
        "firstByteSeconds": 0.0125, "cached": True, "groups": 3, "upstreamSeconds": 0.5, "upstreamStatus": 201,
        "attempts": 2, "traceId": "ab", "apiService": "apps/v1",
    }  # fmt: skip


def test_both_formats_name_the_process_where_there_are_several() -> None:
    entry = json.loads(json_line("worker-1")(record()))
    assert entry == {**json.loads(json_line()(record())), "process": "worker-1"}
    assert combined_line("worker-1")(record()) == combined_line()(record())[:-1] + " worker-1\n"


def test_json_line_leaves_out_what_is_unknown() -> None:
    entry = json.loads(json_line()(record()))
    assert {"requestId", "verb", "resource", "userAgent", "firstByteSeconds", "cached"}.isdisjoint(entry)
    assert (entry["server"], entry["user"], entry["upgraded"]) == ("-", "-", False)


def test_time_goes_on_within_and_across_seconds() -> None:
    formatter = json_line()
    times = [1795261320.0, 1795261320.9996, 1795261320.5, 1795261321.5]
    stamps = [json.loads(formatter(record(time=when)))["ts"][17:] for when in times]
    assert stamps == ["00.000Z", "01.000Z", "00.500Z", "01.500Z"]


@given(uri=st.text(), agent=st.text(), client=st.text(), method=st.text(), user=st.text())
def test_json_line_reads_back_and_is_one_ascii_line(uri: str, agent: str, client: str, method: str, user: str) -> None:
    line = json_line()(record(uri=uri, user_agent=agent, client=client, method=method, user=user))
    assert line.isascii()
    assert line.count("\n") == 1
    entry = json.loads(line)
    assert entry["uri"] == mask_query(uri)
    assert entry.get("userAgent", "") == agent


def test_combined_line_is_what_log_tools_know() -> None:
    line = combined_line()(record(uri="/api?limit=5", user_agent="kubectl/v1", bytes_out=77, total=0.01))
    assert line == (
        '10.1.2.3 - - [21/Nov/2026:11:42:00 +0000] "GET /api?limit=5 HTTP/1.1" 200 77 "-" "kubectl/v1" '
        "- - - ok 0.010 - -\n"
    )
    assert ' "GET /api HTTP/2.0" 200 ' in combined_line()(record(protocol="HTTP/2.0"))


@given(uri=st.text(), agent=st.text(), user=st.text(), method=st.text())
def test_combined_line_cannot_be_forged(uri: str, agent: str, user: str, method: str) -> None:
    line = combined_line()(record(uri=uri, user_agent=agent, user=user, method=method))
    assert line.isascii()
    assert re.fullmatch(r'10\.1\.2\.3 - [^ "]+ \[[^]]+\] "[^"]*" 200 0 "-" "[^"]+" - - - ok 0\.000 - -\n', line)


@pytest.mark.parametrize(
    ("uri", "masked"),
    [
        ("/api", "/api"),
        ("/api?limit=500&continue=abc", "/api?limit=500&continue=abc"),
        ("/x?token=abc", "/x?token=***"),
        ("/x?a=1&access_token=abc.def&b=2", "/x?a=1&access_token=***&b=2"),
        ("/x?Authorization=Bearer%20abc", "/x?Authorization=***"),
        ("/x?to%6ben=abc", "/x?to%6ben=***"),
        ("/x?X-Amz-Signature=abc", "/x?X-Amz-Signature=***"),
        ("/x?password=a=b", "/x?password=***"),
        ("/token?", "/token?"),
        ("/x?token", "/x?token"),
        ("/x?a=token", "/x?a=token"),
    ],
)
def test_secrets_in_the_query_are_masked(uri: str, masked: str) -> None:
    assert mask_query(uri) == masked


def test_long_target_is_cut_in_both_formats() -> None:
    long = record(uri="/" + "x" * 30000, user_agent="y" * 30000)
    assert len(json_line()(long)) < 2 * LONGEST + 500
    others = record(verb="list", resource="z" * 30000, request_id="1" * 30000)
    assert len(json_line()(others)) < 2 * LONGEST + 500
    entry = json.loads(json_line()(others))
    assert entry["resource"] == "z" * LONGEST + "..."
    assert entry["requestId"] == "1" * LONGEST + "..."
    assert len(combined_line()(long)) < 2 * LONGEST + 500


@pytest.mark.parametrize(
    "query",
    [
        "token=SECRET", "jwt=SECRET", "code=SECRET", "sig=SECRET", "access_token=SECRET", "X-Amz-Signature=SECRET",
        "a=1&code=SECRET&b=2", "%63ode=SECRET", "CODE=SECRET", "client_secret=SECRET", "assertion=SECRET",
        "client_assertion=SECRET", "SAMLResponse=SECRET", "code_verifier=SECRET", "pwd=SECRET", "pass=SECRET",
        "otp=SECRET", "passphrase=SECRET", "key=SECRET", "ticket=SECRET", "PHPSESSID=SECRET", "jsessionid=SECRET",
        "private_key=SECRET",
        "container=c&command=mysql&command=-pSECRET&stdin=true",
    ],
)  # fmt: skip
def test_credential_in_the_query_is_masked(query: str) -> None:
    masked = mask_query("/api/v1/namespaces/a/pods/p/exec?" + query)
    assert "SECRET" not in masked
    assert "***" in masked


@pytest.mark.parametrize(
    "query",
    ["labelSelector=app%3Dx&limit=500", "encode=1&signed=2&codec=3&commands=4&keys=5", "fieldManager=sig", "code="],
)
def test_other_parameters_stay(query: str) -> None:
    assert mask_query("/api?" + query) == "/api?" + query


def test_lines_do_not_depend_on_the_lines_before() -> None:
    kept = json_line()
    records = [
        record(client=client, cached=cached, user_agent=agent, groups=groups, attempts=groups)
        for client in ("10.1.2.3", "10.1.2.4")
        for cached in (None, True, False)
        for agent in ("", "kubectl", "x" * 3000)
        for groups in (0, 1)
    ]
    for each in records * 2:
        assert kept(each) == json_line()(each)


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-6, 9.9e-6, 1e-5, 9.99e-5, 0.25, 86400.0, 1e7])
def test_seconds_are_plain_decimals(seconds: float) -> None:
    line = json_line()(record(total=seconds, first_byte=seconds, upstream=seconds))
    numbers = re.findall(r'Seconds":([^,}]*)', line)
    assert len(numbers) == 3
    assert all(re.fullmatch(r"[0-9]+\.[0-9]+", each) for each in numbers), numbers
    assert all(abs(float(each) - seconds) < 1e-5 for each in numbers)
