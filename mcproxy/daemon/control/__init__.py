"""The control socket and its commands."""
