"""Client certificates (`clientCertificates`): verification, revocation, and the user that a certificate names."""
