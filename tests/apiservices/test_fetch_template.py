"""Which of an API server's answers a template is made of."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mcproxy.apiservices import role_template
from mcproxy.apiservices.role_objects import Template
from mcproxy.apiservices.role_template import AskError, FetchedAnswer, RefusedError
from tests.apiservices.test_discovered import GROUP, document
from tests.apiservices.test_published import role

DISCOVERY = {f"/apis/{GROUP}/v1": FetchedAnswer(200, json.dumps(document()).encode())}
SERVICE = "https://garden.green.svc"


def template(answers: dict[str, FetchedAnswer], **options: Any) -> tuple[Template, list[str]]:
    asked: list[str] = []

    async def get(path: str, accept: str, most: int) -> FetchedAnswer:
        assert "json" in accept
        assert most > 0
        asked.append(path)
        return answers.get(path, FetchedAnswer(404, b"404 page not found"))

    return asyncio.run(role_template.template(get, GROUP, "v1", **options)), asked


def test_what_it_publishes_comes_first() -> None:
    body = json.dumps(role()).encode()
    found, asked = template({f"/bootstrap/{GROUP}": FetchedAnswer(200, body), **DISCOVERY}, urls=[SERVICE])
    assert asked == [f"/bootstrap/{GROUP}"]
    assert "publishes at /bootstrap/garden.example.com" in found.title
    assert '"plants-view"' in found.text
    assert 'namespace: "green"' in found.text
    found, asked = template({"/bootstrap/rbac": FetchedAnswer(200, body), **DISCOVERY})
    assert asked == [f"/bootstrap/{GROUP}", "/bootstrap/rbac"]
    assert "publishes at /bootstrap/rbac" in found.title


def test_what_is_refused_stands_there_in_words_and_nothing_is_made_up_instead() -> None:
    wide = role("plants-view", {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})
    found, _ = template({f"/bootstrap/{GROUP}": FetchedAnswer(200, json.dumps(wide).encode()), **DISCOVERY})
    assert found.refused == ('"ClusterRole" "plants-view": rule 1 has * in apiGroups',)
    assert '# Refused: "ClusterRole" "plants-view": rule 1 has * in apiGroups.' in found.text
    assert "\nrules:" not in found.text


def test_without_any_they_are_made_of_discovery() -> None:
    found, _ = template(DISCOVERY, user="system:serviceaccount:a:b", because="so")
    assert "made of its discovery" in found.title
    assert f'"v1.{GROUP}:view"' in found.text
    assert "# The user is so." in found.text
    found, _ = template(
        {f"/bootstrap/{GROUP}": FetchedAnswer(200, b"<html>"), "/bootstrap/rbac": FetchedAnswer(403, b""), **DISCOVERY}
    )
    assert f"# What it answers at /bootstrap/{GROUP} is no list of Kubernetes objects." in found.text
    assert "# It does not let mcproxy read /bootstrap/rbac (403)." in found.text


@pytest.mark.parametrize(
    ("answer", "why"), [(FetchedAnswer(404, b""), "answered 404"), (FetchedAnswer(200, b"{"), "is not acceptable JSON")]
)
def test_without_discovery_there_is_nothing(answer: FetchedAnswer, why: str) -> None:
    with pytest.raises(AskError, match=why):
        template({f"/apis/{GROUP}/v1": answer})


def test_endless_roles_are_refused() -> None:
    with pytest.raises(RefusedError, match="more than 256 KiB"):
        template({f"/bootstrap/{GROUP}": FetchedAnswer(200, b"a" * 300_000), **DISCOVERY})
