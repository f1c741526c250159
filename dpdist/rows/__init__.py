"""Private rows, before any sum: opening, ingesting and bounding them."""
