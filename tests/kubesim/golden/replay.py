"""Sends a recorded request and compares the response with the recorded one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.kubesim.golden import golden_files
from tests.kubesim.raw_client import Answer, Target, body_of, chunks, fetch, open_request

LIMIT = 60.0
"""Seconds an exchange may take, by default, on a machine that may be busy."""

REST = 1.2
"""Seconds without an event after which a watch is compared."""
LONG_REST = 5.0
"""The same while fewer have come than were recorded: a busy machine may hold them up."""


async def send(
    target: Target, request: dict[str, Any], response: dict[str, Any], *, limit: float = LIMIT, patient: bool = True
) -> Answer:
    """Send a request of `folders.prepare`; `response` is the recorded one. Raises TimeoutError after `limit` s.

    A watch with fewer events than were recorded is waited for; with `patient` false, for known differences, it is not.
    """
    headers = [(name, value) for name, value in request["headers"]]
    body = body_of(request)
    async with asyncio.timeout(limit):
        if response["status"] == 304:
            plain = [pair for pair in headers if pair[0] != "If-None-Match"]
            first = await fetch(target, request["method"], request["path"], plain, body)
            headers = [*plain, ("If-None-Match", first.header("ETag") or "")]
        if "stream" in response:
            return await _watch(target, request["path"], headers, len(response["stream"]), patient=patient)
        return await fetch(target, request["method"], request["path"], headers, body)


async def _watch(target: Target, path: str, headers: list[tuple[str, str]], count: int, *, patient: bool) -> Answer:
    """Return the first `count` lines of a watch, or those until it ends or pauses."""
    answer = await open_request(target, "GET", path, headers, None)
    lines: list[bytes] = []
    first, next_one = (LIMIT / 2, LONG_REST) if patient else (LONG_REST / 2, REST)
    try:
        async with asyncio.timeout(first if count else REST) as pause:
            async for chunk in chunks(answer):
                lines.append(chunk)
                rest = REST if len(b"".join(lines).splitlines()) >= count else next_one
                pause.reschedule(asyncio.get_running_loop().time() + rest)
                if len(b"".join(lines).splitlines()) >= count > 0:
                    break
    except TimeoutError:
        pass
    answer.close()
    answer.body = b"".join(lines)
    return answer


def compare(recording: dict[str, Any], answer: Answer, *, revisions: bool) -> list[str]:
    """Return the differences of a response from the recorded one."""
    response = recording["response"]
    if response["status"] != answer.status:
        return [f"status {answer.status}, expected {response['status']}: {answer.body[:400]!r}"]
    expected_headers = golden_files.header_values(response["headers"])
    found = golden_files.differences(expected_headers, golden_files.header_values(answer.headers), "headers")
    if "body" not in response and "stream" not in response:
        return found
    content_type = answer.header("Content-Type") or ""
    text = response.get("body", "")
    if "stream" in response:
        text = "".join(item["line"] for item in response["stream"])
    actual = answer.text()
    if not text and not actual:
        return found
    if content_type.startswith("application/json") and (text[:9] == '{"type":"' or actual[:9] == '{"type":"'):
        return found + _compare_lines(text, actual, revisions=revisions)
    try:
        return found + golden_files.differences(
            golden_files.body_value(text, content_type, revisions=revisions),
            golden_files.body_value(actual, content_type, revisions=revisions),
            "body",
        )
    except json.JSONDecodeError:
        return [*found, f"body {actual[:300]!r}, expected {text[:300]!r}"]


def _compare_lines(expected: str, actual: str, *, revisions: bool) -> list[str]:
    left = [golden_files.normal(json.loads(line), revisions=revisions) for line in expected.splitlines()]
    right = [golden_files.normal(json.loads(line), revisions=revisions) for line in actual.splitlines()]
    return golden_files.differences(left, right, "events")
