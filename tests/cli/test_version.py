import json
import platform
import re
from importlib.metadata import requires, version

import pytest

from mcproxy import BUILD, __version__
from mcproxy.cli.main import main


def test_text_begins_with_the_line_of_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"mcproxy {__version__}"
    assert any(re.fullmatch(rf"  build +{BUILD}", line) for line in lines)
    assert any(re.fullmatch(rf"  twisted +{re.escape(version('twisted'))}", line) for line in lines)


def test_json_has_python_openssl_and_every_required_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["build"] == BUILD
    assert found["python"].endswith(platform.python_version())
    assert re.match(r"(OpenSSL|LibreSSL|BoringSSL|AWS-LC) ", found["openssl"])
    required = {re.split(r"[^\w.-]", each)[0] for each in requires("mcproxy") or () if "extra ==" not in each}
    assert "twisted" in required
    assert required <= set(found["libraries"])
    assert found["libraries"]["cryptography"] == version("cryptography")
    assert "pytest" not in found["libraries"]
