"""Sessions of several sites: one release of their rows together, by files that people carry, without a trusted sum."""
