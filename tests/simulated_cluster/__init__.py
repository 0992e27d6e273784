"""A simulated cluster in a process of its own, for tests, and a client of its control API."""
