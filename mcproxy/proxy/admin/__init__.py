"""The read-only admin interface of a listener with `serves: Admin`: it shows the state of the daemon."""
