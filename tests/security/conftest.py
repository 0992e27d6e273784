"""The fixtures of the stages, for attacks on a whole proxy."""

from __future__ import annotations

from tests.proxy.conftest import reactor as reactor
from tests.security.identity_stage import identity_stage as identity_stage
