"""The section `logging`."""

from __future__ import annotations

from mcproxy.config.context import Context
from mcproxy.config.model import AccessLog, AuditLog, Logging
from mcproxy.config.reading.merge import Merged
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.fields import Fields


def build_logging(context: Context, merged: Merged) -> Logging:
    level, form = merged.setting("logging", "level"), merged.setting("logging", "format")
    access, audit = merged.setting("logging", "access"), merged.setting("logging", "audit")
    access_log = audit_log = None
    if access is not None:
        access_log = AccessLog(file=_file(context, access), format=Fields(access).text("format", AccessLog().format))
    if audit is not None:
        audit_log = AuditLog(file=_file(context, audit), level=Fields(audit).text("level", AuditLog().level))
        if access_log is not None and access_log.file == audit_log.file != "-":
            what = f"{audit_log.file} is the file of logging.access, too"
            context.error(audit.get("file") or audit, what, "name another file: each has its own form and readers")
    return Logging(
        level=(level.string if level is not None else None) or Logging().level,
        format=(form.string if form is not None else None) or Logging().format,
        access=access_log,
        audit=audit_log,
    )


def _file(context: Context, section: Place) -> str:
    """Return the file of a log, "-" for stdout."""
    file = section.get("file")
    path = "-" if file is None or file.string == "-" else context.path(file)
    return path or "-"
