"""What browsers may ask: their pages' own names and other sites' requests are refused, a followed link is not."""

import re
from base64 import b64decode
from hashlib import sha256

import pytest

from mcproxy.identity.client_identity_headers import split_identity_headers
from mcproxy.kube.status import StatusError
from mcproxy.proxy.admin.browsers import check_host, check_site, page_policy


@pytest.mark.parametrize(
    "host", [b"localhost:9901", b"127.0.0.1", b"127.9.9.9:1", b"[::1]:9901", b"a.localhost", b"", b"admin.internal:80"]
)
def test_names_of_this_machine_and_the_bound_one_pass(host: bytes) -> None:
    check_host(host, "admin.internal")


@pytest.mark.parametrize(
    "host",
    [b"evil.example", b"localhost.evil.example", b"127.0.0.1.evil.example", b"10.0.0.1:9901", b"[fd00::1]", b"0x7f.1"],
)
def test_every_other_name_is_refused(host: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        check_host(host, "")
    assert caught.value.code == 403


LINK = b"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"


@pytest.mark.parametrize(
    "fields",
    [b"", LINK, b"Sec-Fetch-Site: same-origin\r\n", b"Sec-Fetch-Site: none\r\n", b"Origin: http://localhost:9901\r\n"],
)
def test_no_page_its_own_page_and_a_followed_link_pass(fields: bytes) -> None:
    check_site(split_identity_headers(fields), b"localhost:9901")


@pytest.mark.parametrize(
    "fields",
    [
        b"Sec-Fetch-Site: cross-site\r\n",
        b"Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: cors\r\n",
        b"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n",
        b"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n",
        b"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: object\r\n",
        b"Origin: http://evil.example\r\n",
        b"Origin: null\r\n",
        b"Origin: http://localhost:1\r\n",
        LINK + b"Origin: http://evil.example\r\n",  # a form
    ],
)
def test_pages_of_other_origins_are_refused(fields: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        check_site(split_identity_headers(fields), b"localhost:9901")
    assert caught.value.code == 403


def test_the_policy_allows_this_style_and_this_script_alone() -> None:
    policy = page_policy("a{}", "b()").decode()
    hashes = [b64decode(found) for found in re.findall(r"'sha256-([^']+)'", policy)]
    assert hashes == [sha256(b"a{}").digest(), sha256(b"b()").digest()]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert policy.endswith("frame-ancestors 'none'\r\n")
