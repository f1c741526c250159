"""What several tests need: scenes, files by independent writers, doubles, and constants."""
