"""Authentication by ID tokens of OIDC issuers (`oidc`): signatures, claims, and the issuers' keys."""
