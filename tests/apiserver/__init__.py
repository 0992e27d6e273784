"""An aggregated API server of another make, written with aiohttp alone: nothing of mcproxy or of its simulated cluster
is in it but what makes certificates. It verifies who calls by itself, as k8s.io/apiserver does, and can misbehave.
"""
