"""Tests of mcproxy.upstream."""
