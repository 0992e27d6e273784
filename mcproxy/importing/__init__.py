"""Configurations made from what other programs use: kubeconfigs, KubeGateway's and Karmada's objects.

What is read is hostile: it is bounded, its types are checked, names become file names only where they are names, and
what is made is read by mcproxy's own loader before anybody gets it. Nothing that is made allows what the original
refused: what cannot be said exactly is said narrower, or refused, and reported either way.
"""
