"""Names that nobody can guess."""

from __future__ import annotations

import os


def random_token() -> str:
    """Return 128 random bits as 32 hexadecimal digits: an identity that says nothing about what it names."""
    return os.urandom(16).hex()
