"""/debug/requests: what is shown of a request, and what never is."""

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.proxy.admin.request_list import MAX_SHOWN, masked_target, merged, table

SECRET = "s3cr3t-t0ken"


def test_parameters_of_kubernetes_are_shown_and_their_values_if_they_are_plain() -> None:
    target = b"/api/v1/pods?watch=true&resourceVersion=12&labelSelector=app%3Dx&continue=abc&timeoutSeconds=30"
    assert masked_target(target) == (
        "/api/v1/pods?watch=true&resourceVersion=12&labelSelector=…&continue=…&timeoutSeconds=30"
    )


def test_commands_and_unknown_parameters_are_not() -> None:
    assert masked_target(b"/exec?command=echo&command=secret&stdin=true&token=abc&abc") == (
        "/exec?command=…&stdin=true&…"
    )


def test_nothing_behind_a_proxy_path_is() -> None:
    shown = masked_target(b"/api/v1/namespaces/a/services/b/proxy/login/abc?token=x")
    assert shown == "/api/v1/namespaces/a/services/b/proxy/…?…"
    assert masked_target(b"/api/v1/nodes/a/%70rox%79/abc") == "/api/v1/nodes/a/%70rox%79/…"
    assert masked_target(b"/api/v1/namespaces/proxy") == "/api/v1/namespaces/proxy"
    assert "abc" not in masked_target(b"/" + b"x" * 280 + b"/proxy/" + b"abc" * 90)


@given(st.sampled_from(["token", "access_token", "command", "a", "", "labelSelector", "continue", "x=watch"]))
def test_a_secret_in_a_query_is_never_shown(name: str) -> None:
    for query in (f"{name}={SECRET}", f"watch=1&{name}={SECRET}", SECRET, f"{SECRET}={name}", f"watch={SECRET}%20"):
        assert SECRET not in masked_target(f"/api/v1/pods?{query}".encode())


@given(st.binary(max_size=5000))
def test_any_target_is_short_and_text(target: bytes) -> None:
    assert len(masked_target(target)) <= 1000


def entry(age: float, **fields: object) -> dict[str, object]:
    return {"ageSeconds": age, "state": "sent", "process": "worker-0", "path": "/api", "bytesOut": 0, **fields}


def test_processes_are_merged_by_age() -> None:
    parts = [{"total": 5, "requests": [entry(3), entry(1)]}, {"total": 1, "requests": [entry(2)]}]
    document = merged(parts, ["worker-2"])
    assert [each["ageSeconds"] for each in document["requests"]] == [3, 2, 1]
    assert (document["total"], document["missing"]) == (6, ["worker-2"])
    many = merged([{"total": 900, "requests": [entry(age) for age in range(900)]}] * 2)
    assert (len(many["requests"]), many["total"]) == (MAX_SHOWN, 1800)


def test_the_table_has_a_line_for_each_and_no_control_characters() -> None:
    document = merged([{"total": 2, "requests": [entry(3, user="a\x1b[31m\nb", impersonated="c"), entry(1)]}], ["w"])
    lines = table(document).splitlines()
    assert lines[0].split() == "age state process client user server cluster endpoint verb path".split()  # noqa: SIM905
    assert "a?[31m?b as c" in lines[1]
    assert lines[3:] == ["2 in flight", "no answer from: w"]
    assert "the oldest 1 are shown" in table({"total": 2, "requests": [entry(1)], "missing": []})
