"""From people's files to a table of rows."""
