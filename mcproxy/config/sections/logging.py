"""The section `logging`."""

from __future__ import annotations

from mcproxy.config.context import Context
from mcproxy.config.model import AccessLog, Logging
from mcproxy.config.reading.merge import Merged
from mcproxy.config.sections.fields import Fields


def build_logging(context: Context, merged: Merged) -> Logging:
    level, access = merged.setting("logging", "level"), merged.setting("logging", "access")
    form = merged.setting("logging", "format")
    log = None
    if access is not None:
        file = access.get("file")
        path = "-" if file is None or file.string == "-" else context.path(file)
        log = AccessLog(file=path or "-", format=Fields(access).text("format", AccessLog().format))
    return Logging(
        level=(level.string if level is not None else None) or Logging().level,
        format=(form.string if form is not None else None) or Logging().format,
        access=log,
    )
