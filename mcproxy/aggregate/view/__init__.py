"""Views: what an aggregate reads of one resource, as a union of its members' stores."""
