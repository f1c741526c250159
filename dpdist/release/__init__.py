"""The once-only release: what is asked for, the trusted node's transaction, and the published artefact."""
