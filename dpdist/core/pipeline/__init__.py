"""The steps that a person takes: rows to a private release, to components, to scores."""
