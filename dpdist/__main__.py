"""``python -m dpdist``."""

from dpdist.cli import main

if __name__ == "__main__":
    main()
