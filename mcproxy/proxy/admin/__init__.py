"""What a listener with `serves: Admin` answers: the state of the daemon, read-only. Nothing here changes anything."""
