"""A simulated kube-apiserver for the tests and `mcproxy demo`, on aiohttp, in a separate process."""
