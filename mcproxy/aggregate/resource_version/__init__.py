"""Resource versions of an aggregate: writes the versions of all members into one string, and parses such strings."""
