"""The fixtures of whole proxies, for attacks on them."""

from __future__ import annotations

from tests.proxy.conftest import harness as harness
from tests.proxy.conftest import reactor as reactor
from tests.security.authenticating_proxy import authenticating_proxy as authenticating_proxy
from tests.security.authenticating_proxy import patient_reviews as patient_reviews
