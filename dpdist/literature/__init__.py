"""The published mechanisms with their samplers and profiles, attacks on them, and matrices of declared sensitivity."""
