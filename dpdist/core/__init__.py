"""Everything that touches a row, a budget or noise. It imports nothing of dpdist outside of itself."""
