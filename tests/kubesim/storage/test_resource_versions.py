"""resourceVersion parameters of the simulated cluster."""

from __future__ import annotations

import pytest

from kubesim.storage import list_watch


def test_revisions() -> None:
    assert [list_watch.parse_revision(text) for text in ("", "0", "12")] == [0, 0, 12]
    with pytest.raises(ValueError, match='parsing "-1": invalid syntax'):
        list_watch.parse_revision("-1")
