"""The process: start, signals, reload, systemd, control socket, logging, and the snapshot of live parts (`runtime`).

This is the only room that chooses a reactor. It knows of the proxy just `runtime`'s Service: start, apply, shut down.
The environment, the signals and the control socket are trusted as far as the operating system vouches for them (peer
credentials); nothing here is reachable from the network.
"""
