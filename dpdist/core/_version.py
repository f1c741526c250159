"""The version, in one place: the package, its releases and its metadata read it here."""

__version__ = "0.1.0"
