"""Authentication by client certificates (`clientCertificates`): verification, revocation, and the user's name."""
