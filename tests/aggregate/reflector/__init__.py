"""Tests of the reflectors, most of them against the simulated cluster."""
