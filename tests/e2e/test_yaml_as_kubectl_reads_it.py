"""Scalars and keys of YAML bodies mean what kubectl, which reads with kube-apiserver's library, takes them for."""

from __future__ import annotations

import json
import subprocess

from mcproxy.kube.yaml_nodes import to_json

SCALARS = (
    *(
        "yes",
        "Yes",
        "YES",
        "yEs",
        '"yes"',
        "on",
        "Off",
        "n",
        "Y",
        "true",
        "TRUE",
        "tRUE",
        "~",
        "null",
        "Null",
        "nULL",
        '""',
    ),
    *(
        "0",
        "-0",
        "+5",
        "010",
        "0o10",
        "08",
        "-010",
        "0x1F",
        "0X1f",
        "-0x1",
        "0b11",
        "-0b11",
        "0B11",
        "1_000",
        "0_7",
        "1_",
        "_1",
    ),
    *(
        "9223372036854775807",
        "-9223372036854775808",
        "'5'",
        "!!str 5",
        "0x",
        "0o",
        "0o9",
        "-",
        "+",
        ".",
        "1:30",
        "1 000",
    ),
    *(
        "1.0",
        "1.5",
        ".5",
        "-.5",
        "1.",
        "1e3",
        "1E3",
        "1e+3",
        "1.5e-7",
        "1e21",
        "1_0.5",
        ".5_0",
        "1e",
        "e1",
        "0x1.8p1",
        "infinity",
    ),
    *(
        "2024-01-02",
        "2024-01-02T03:04:05Z",
        "2024-1-2 3:4:5",
        "2024-13-99",
        "1.2.3.4",
        "0777-",
        "=",
        "a: b"[:1],
        "nan",
        "NaN",
    ),
)
KEYS = ("a", "yes", "'yes'", "1", "0x10", "010", "~a", "1_000", "off")


def test_scalars_and_keys(kubectl: str) -> None:
    body = {each: f"v{number}" for number, each in enumerate(KEYS)}
    text = "apiVersion: example.com/v1\nkind: Odd\nmetadata: {name: a}\nscalars:\n"
    text += "".join(f"- {each}\n" for each in SCALARS) + "keys:\n" + "".join(f"  {k}: {v}\n" for k, v in body.items())
    command = [kubectl, "annotate", "--local", "-f", "-", "-o", "json", "x=y"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=True)
    expected, found = json.loads(done.stdout), json.loads(to_json(text))
    for scalar, mine, kubectls in zip(SCALARS, found["scalars"], expected["scalars"], strict=True):
        assert (scalar, mine, type(mine)) == (scalar, kubectls, type(mine if mine == kubectls else kubectls))
        assert isinstance(mine, bool) == isinstance(kubectls, bool)
    assert found["keys"] == expected["keys"]
