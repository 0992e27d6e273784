"""How long an answer may take, by what is asked; how a request is framed is seen on the wire (`test_forward`)."""

from __future__ import annotations

import pytest

from mcproxy.kube.requestinfo import parse
from mcproxy.proxy.forward import response_timeout


@pytest.mark.parametrize(
    ("target", "seconds"),
    [
        (b"/api/v1/pods", 60.0),
        (b"/api/v1/pods?timeout=90s", 90.0),
        (b"/api/v1/pods?timeout=soon", 60.0),
        (b"/api/v1/pods?timeout=", 60.0),
        (b"/api/v1/pods?watch=1&timeout=5s", 0.0),
        (b"/api/v1/namespaces/a/pods/b/log?follow=true", 0.0),
        (b"/api/v1/namespaces/a/pods/b/exec", 0.0),
    ],
)
def test_the_time_is_the_querys_or_the_usual_one_and_none_for_what_may_last(target: bytes, seconds: float) -> None:
    assert response_timeout(parse(b"GET", target), target, 60.0) == seconds
