"""Recordings that the simulated cluster does not reproduce, each with the reason."""

from __future__ import annotations

DIFFERENCES: dict[str, str] = {}
