"""Small things that every room uses."""
