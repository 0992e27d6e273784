"""The process of a simulated cluster: application, listening ports, control API."""
