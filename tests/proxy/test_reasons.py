"""The reasons of the access log: one table, which code and manual keep to."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from mcproxy.requests.reasons import REASONS, Step, refusal_reason
from mcproxy.services.ingress.forward_target import Failure

ROOT = Path(__file__).parents[2]


def used() -> set[str]:
    """The words that proxy/ and requests/ give as a reason: assigned to `.reason`, or passed to `refuse`."""
    found: set[str] = set()
    for source in (*(ROOT / "mcproxy" / "proxy").glob("*.py"), ROOT / "mcproxy" / "requests" / "in_flight.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            values: list[ast.expr] = []
            if isinstance(node, ast.Assign) and any(
                (isinstance(target, ast.Attribute) and target.attr == "reason")
                or (isinstance(target, ast.Name) and target.id == "reason")
                for target in node.targets
            ):
                values = [node.value]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "refuse":
                    values = node.args[1:]
                elif node.func.attr == "_expire":
                    values = node.args
            elif isinstance(node, ast.FunctionDef) and node.name == "outcome":
                values = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
            found.update(
                each.value
                for value in values
                for each in ast.walk(value)
                if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value
            )
    return found | of_ingresses()


def of_ingresses() -> set[str]:
    """Return those that the package services/ingress/ gives: passed to `deny`, or those of a `Failure`."""
    found = {failure.reason for failure in Failure}
    for source in (ROOT / "mcproxy" / "services" / "ingress").glob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "deny":
                found.update(str(each.value) for each in node.args[2:3] if isinstance(each, ast.Constant))
            elif isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Attribute) and target.attr == "reason" for target in node.targets
            ):
                found.update(str(each.value) for each in [node.value] if isinstance(each, ast.Constant) and each.value)
    return found


def test_every_word_that_the_code_uses_is_in_the_table() -> None:
    words = used()
    assert {"ok", "client_closed", "upstream_silent", "drained"} <= words  # the search finds them
    assert words <= set(REASONS)


def test_every_word_of_the_table_can_occur() -> None:
    by_step = {refusal_reason(step, code) for step in Step for code in range(400, 600)}
    assert set(REASONS) == used() | by_step


@pytest.mark.parametrize("code", [400, 401, 403, 404, 421, 429, 502, 503, 504])
def test_each_status_of_our_own_has_a_word(code: int) -> None:
    assert any(text.startswith(f"{code}:") for text in REASONS.values())


@pytest.mark.parametrize(
    ("step", "code", "reason"),
    [
        (Step.ROUTING, 404, "no_server"),
        (Step.ROUTING, 421, "misdirected"),
        (Step.AUTHENTICATION, 400, "bad_request"),
        (Step.AUTHENTICATION, 401, "unauthenticated"),
        (Step.AUTHORIZATION, 403, "forbidden"),
        (Step.FLOW_CONTROL, 429, "flow_control"),
        (Step.FLOW_CONTROL, 418, "refused"),
    ],
)
def test_a_refusal_has_the_reason_of_its_step(step: Step, code: int, reason: str) -> None:
    assert refusal_reason(step, code) == reason


def test_the_manual_lists_each_word_and_no_other() -> None:
    page = (ROOT / "man" / "mcproxy.yaml.5").read_text()
    section = page[page.index(".Ss Reasons") :].split(".El")[0]
    listed = re.findall(r"^\.It Li (\w+)$", section, re.MULTILINE)
    assert sorted(listed) == sorted(set(listed))
    assert set(listed) == set(REASONS)
