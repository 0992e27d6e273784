"""The consistency tester: replicas of an aggregate under faults, checked against the members' own history."""
