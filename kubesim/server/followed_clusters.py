"""Polls, over HTTP, the clusters whose node and pod metrics an API server serves."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from kubesim.cluster import SimulatedCluster
from kubesim.fixtures import api_server

JSONDict = dict[str, Any]
FIRST_SECONDS = 0.1
"""Seconds between attempts until all clusters have answered once: they start at the same time."""
SECONDS = 2.0
GROWTH_SECONDS = 1.0
READY_HOOK = "metric-storage-ready"
"""The check of /readyz that fails until there are metrics, by the name in metrics-server."""


async def follow(cluster: SimulatedCluster, directories: Sequence[Path]) -> None:
    """Keep metrics of the simulated clusters with these directories, and let plants grow, until cancelled."""
    rng = random.Random(f"life of {cluster.name}")
    growing = asyncio.create_task(_grow(cluster, rng))
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            while True:
                await asyncio.sleep(SECONDS if await _sample(cluster, session, directories) else FIRST_SECONDS)
    finally:
        growing.cancel()
        await asyncio.gather(growing, return_exceptions=True)


async def _grow(cluster: SimulatedCluster, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(GROWTH_SECONDS)
        api_server.grow(cluster, rng)


async def _sample(cluster: SimulatedCluster, session: aiohttp.ClientSession, directories: Sequence[Path]) -> bool:
    """Return whether all clusters have answered; else the known state is kept."""
    found: dict[str, list[JSONDict]] = {"namespaces": [], "nodes": [], "pods": []}
    try:
        for directory in directories:
            url, context = _access(directory)
            for plural, items in found.items():
                async with session.get(f"{url}/api/v1/{plural}", ssl=context) as response:
                    response.raise_for_status()
                    items += (await response.json())["items"]
    except (TimeoutError, OSError, ValueError, KeyError, aiohttp.ClientError):
        return False
    api_server.add_namespaces(cluster, (each["metadata"]["name"] for each in found["namespaces"]))
    api_server.sample(cluster, found["nodes"], found["pods"])
    cluster.state["unready"] = ()
    return True


def _access(directory: Path) -> tuple[str, ssl.SSLContext]:
    """Return the URL of a cluster and the TLS context with its administrator's certificate."""
    kubeconfig = json.loads((directory / "kubeconfig").read_text())
    context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    context.load_cert_chain(directory / "admin.crt", directory / "admin.key")
    return str(kubeconfig["clusters"][0]["cluster"]["server"]), context
