"""Job files, for one table or for periods."""
