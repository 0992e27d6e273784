"""A simulated kube-apiserver for the tests and `mcproxy demo`, on aiohttp, in a process of its own."""
