"""exec, attach, port-forward, logs and pod proxy, over SPDY/3.1, WebSocket and plain HTTP."""
