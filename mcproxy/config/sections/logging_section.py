"""The section `logging`."""

from __future__ import annotations

from mcproxy.config.model import AccessLog, AuditLog, Logging
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import Merged
from mcproxy.config.sections.model_reader import read


def build_logging(context: Context, merged: Merged) -> Logging:
    settings = merged.section("logging")
    access, audit = settings.get("access"), settings.get("audit")
    access_log = audit_log = None
    if access is not None:
        access_log = read(context, access, AccessLog, file=_file(context, access))
    if audit is not None:
        audit_log = read(context, audit, AuditLog, file=_file(context, audit))
        if access_log is not None and access_log.file == audit_log.file != "-":
            what = f"{audit_log.file} is the file of logging.access, too"
            context.error(audit.get("file") or audit, what, "name another file: each has its own form and readers")
    return read(context, settings, Logging, access=access_log, audit=audit_log)


def _file(context: Context, section: Place) -> str:
    """Return the file of a log, "-" for stdout."""
    file = section.get("file")
    path = "-" if file is None or file.string == "-" else context.path(file)
    return path or "-"
