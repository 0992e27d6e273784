"""What tests see and switch: the audit log of requests, and faults."""
