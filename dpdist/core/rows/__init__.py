"""Private rows, before any sum: how they are stored, read and bounded."""
