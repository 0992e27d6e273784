"""Fakes and helpers that tests of several folders use; what one folder uses alone is in that folder."""
