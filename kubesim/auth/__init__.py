"""Authentication, impersonation, RBAC, reviews, service account tokens and certificates."""
