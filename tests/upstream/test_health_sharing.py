"""Fingerprints: equal in every process, different for different values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config import model
from mcproxy.upstream.health_sharing import fingerprint
from mcproxy.upstream.tls import ClientCertificate

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=8,
)


@given(first=VALUES, second=VALUES)
def test_different_values_have_different_fingerprints(first: Any, second: Any) -> None:
    same = repr(first) == repr(second)  # 1 == True, but neither is written as the other
    assert (fingerprint(first) == fingerprint(second)) is same


def test_secrets_and_certificates_count() -> None:
    first, second = (model.Credentials(token=model.Secret(token)) for token in "ab")
    assert fingerprint(first) != fingerprint(second)
    assert fingerprint(ClientCertificate(b"c", b"k")) != fingerprint(ClientCertificate(b"c", b"l"))
    assert fingerprint((b"ab", b"c")) != fingerprint((b"a", b"bc"))


def test_it_is_the_same_in_another_process() -> None:
    values = "(model.ClusterTLS(server_name='a'), model.UpstreamIdentity.PROXY, ('x', None, 1.5))"
    program = (
        "from mcproxy.config import model\nfrom mcproxy.upstream.health_sharing import fingerprint\n"
        f"print(fingerprint({values}))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == fingerprint(
        (model.ClusterTLS(server_name="a"), model.UpstreamIdentity.PROXY, ("x", None, 1.5))
    )


def test_what_has_no_fixed_form_is_refused() -> None:
    with pytest.raises(TypeError):
        fingerprint({"a": 1})
