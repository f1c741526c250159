"""Guarantees, and the arithmetic that composes them: mathematics only."""
