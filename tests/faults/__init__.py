"""Faults and attacks, and the real processes that they strike: for the tests, and for the long runs in benchmarks/."""
