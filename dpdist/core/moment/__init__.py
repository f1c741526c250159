"""Exact sums: integer Gram matrices, and the plan that adds them over a whole table."""
