"""Guarantees, the arithmetic that composes them, and the durable budget they are charged to."""
