"""HTTP/2 for the simulated cluster, with the `h2` package: it shares no code with the proxy's own engine.

A stream becomes an HTTP/1.1 exchange in memory with aiohttp's request handler, so that handlers and faults are the same
for both versions.
"""
