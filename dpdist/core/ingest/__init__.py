"""From files of users to a table of rows."""
