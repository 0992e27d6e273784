"""The section `logging`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLog:
    file: str = "-"  # absolute path, or "-" for stdout
    format: str = "json"  # "json" | "combined"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLog:
    file: str = "-"  # absolute path, or "-" for stdout
    level: str = "Metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class Logging:
    level: str = "info"  # debug | info | warn | error
    format: str = "text"  # "text" | "json"
    access: AccessLog | None = None
    audit: AuditLog | None = None
