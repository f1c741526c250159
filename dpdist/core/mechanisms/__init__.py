"""One module per family of mechanisms, with its distribution, proof and guarantee."""
