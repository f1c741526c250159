"""Releases: requests, the transaction that draws each once, and the published format."""
