"""A folder with everything that the cases name, made once."""

from pathlib import Path

import pytest

from tests.config import pki

CASES = Path(__file__).with_name("cases")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cases, beside the certificates and kubeconfigs that they name."""
    path = tmp_path_factory.mktemp("config")
    for source in sorted(CASES.rglob("*")):
        target = path / source.relative_to(CASES)
        if source.is_dir():
            target.mkdir()
        else:
            target.write_bytes(source.read_bytes())
    pki.write(path)
    return path
