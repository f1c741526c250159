"""The ledger: a durable privacy budget, its storages, its witness, and budgets in memory."""
