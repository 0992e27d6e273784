"""The process: start, signals, reload, systemd, control socket, logging, and the snapshot of live parts (`runtime`).

This is the only package that chooses a reactor. Of the proxy it uses only
`service.SingleProcessService`: start, apply, shut down.
The environment, the signals and the control socket (by peer credentials) are trusted; nothing here is reachable from
the network.
"""
