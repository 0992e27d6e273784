"""Authorization (`authorization`): request attributes, rules, SubjectAccessReviews, and the 403 message."""
