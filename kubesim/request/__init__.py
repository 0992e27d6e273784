"""One request: its request info, content negotiation, connection upgrades, and the faults applied to it."""
