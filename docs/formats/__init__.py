"""What is published, for readers that are not dpdist: JSON schemas, and scripts for R and Julia."""
