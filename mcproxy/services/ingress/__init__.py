"""Ingresses: HTTP from outside to services in several clusters."""
