"""How files and arrays are written: whole, or not at all."""
