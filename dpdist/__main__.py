"""``dpdist`` and ``python -m dpdist``: signals are answered before anything heavy is imported."""

from __future__ import annotations

from dpdist.core import interruption


def main() -> None:
    """Run the command line."""
    interruption.install()
    from dpdist.cli import main as command_line  # noqa: PLC0415 - seconds of imports, in which a signal may come

    command_line()


if __name__ == "__main__":
    main()
