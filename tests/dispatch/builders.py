"""Short ways to write users, requests and rules in tests of dispatch."""

from __future__ import annotations

from typing import Any

from mcproxy.config import model
from mcproxy.kube.requestinfo import RequestInfo, parse
from mcproxy.kube.user import UserInfo

ALICE = UserInfo("alice", ("dev", "system:authenticated"))


def resource_request(verb: str = "get", what: str = "pods", group: str = "", **more: str) -> RequestInfo:
    """A request for `resource` or `resource/subresource`; `more` are namespace and name."""
    info = RequestInfo("/apis/unused", verb)
    info.is_resource = True
    info.group = group
    info.resource, _, info.subresource = what.partition("/")
    for name, value in more.items():
        setattr(info, name, value)
    return info


def other_request(path: str, method: str = "GET") -> RequestInfo:
    return parse(method.encode(), path.encode())


def rule(**fields: Any) -> model.Rule:
    """A rule for everything but what `fields` says."""
    everything = {"verbs": ("*",), "api_groups": ("*",), "resources": ("*",), "non_resource_urls": ("*",)}
    return model.Rule(**{**everything, **fields})


def policy(name: str, *rules: model.Rule, **more: Any) -> model.Policy:
    return model.Policy(name=name, rules=rules, **more)
