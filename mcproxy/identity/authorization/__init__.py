"""Authorization (`authorization`): request attributes, rules, SubjectAccessReviews, and the message of a 403."""
