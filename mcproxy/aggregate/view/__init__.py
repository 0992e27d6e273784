"""Views: the union of the members' stores of one resource, from which an aggregate answers reads."""
