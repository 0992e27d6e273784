"""The daemon's log on standard error."""
