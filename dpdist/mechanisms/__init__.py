"""One file per family of mechanisms; each states its law, its proof and its true guarantee."""
