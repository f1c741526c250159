"""The ledger: what was charged to a budget, durably and once."""
