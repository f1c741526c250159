"""Jobs of a file, once or every night."""
