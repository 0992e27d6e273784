"""ID tokens of OIDC issuers (`oidc`): their signature, their claims, and the issuers' keys."""
