"""The daemon process: start, signals, reload, systemd, control socket, logging, and the live objects (`runtime`).

This is the only package that chooses a reactor. It starts, reconfigures and shuts down the proxy through
`service.SingleProcessService` only.
It trusts the environment, signals and the control socket (which checks peer credentials). Nothing here is reachable
from the network.
"""
