"""Resource versions of an aggregate: the versions of all its members in one text, and how such a text is read."""
