"""Post-processing of a release: components, and scores of the rows on every worker."""
