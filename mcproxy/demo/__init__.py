"""A simulated kube-apiserver for tests and the demo (its own process, aiohttp)."""
