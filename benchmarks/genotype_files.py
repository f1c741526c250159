"""Which VCF files of others are read, by which rules, and what the rest is refused for.

Usage: ``python -m benchmarks.genotype_files FOLDER...``. The files of scikit-allel's own tests are in its wheel
(``pip download scikit-allel --no-deps``), in ``allel/test/data``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import dpdist
from dpdist.core.naming import COMMAND_LINE, naming

RULES = {"multiallelic": "split", "haploid": "single"}
TARGET = Path(__file__).parent / "results" / "genotype_files.md"


def tried(path: Path, **how: object) -> str:
    """Return what an ingest makes of a file: its shape, or why it is refused."""
    with tempfile.TemporaryDirectory() as folder, naming(COMMAND_LINE):
        try:
            table = dpdist.ingest_rows(path, Path(folder) / "rows.zarr", **how)  # type: ignore[arg-type]
        except dpdist.DpdistError as error:
            return str(error).replace(str(path), path.name).replace("|", "\\|")
        return f"{table.rows} x {table.columns}"


def main(folders: list[str]) -> None:
    """Try each file without rules and with them, and write the table."""
    files = [path for folder in folders for path in sorted(Path(folder).glob("*.vcf*")) if path.suffix != ".tbi"]
    rules = " ".join(f"`--genotypes {name}={value}`" for name, value in RULES.items())
    lines = [
        "# VCF files of others",
        "",
        f"Samples x columns, or the refusal. The rules are {rules} `--missing 0`.",
        "",
        "| file | without rules | with them |",
        "|---|---|---|",
        *(f"| {path.name} | {tried(path)} | {tried(path, genotypes=RULES, missing=0)} |" for path in files),
    ]
    TARGET.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
