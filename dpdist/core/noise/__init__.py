"""The source of all randomness, and exact distributions on the integers."""
