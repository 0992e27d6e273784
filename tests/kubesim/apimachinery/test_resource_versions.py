"""resourceVersion parameters of the simulated cluster."""

from __future__ import annotations

import pytest

from kubesim.apimachinery import resource_versions


def test_revisions() -> None:
    assert [resource_versions.revision(text) for text in ("", "0", "12")] == [0, 0, 12]
    with pytest.raises(ValueError, match='parsing "-1": invalid syntax'):
        resource_versions.revision("-1")
