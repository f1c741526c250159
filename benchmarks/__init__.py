"""Programs that measure; some inject the faults of ``tests/faults``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))
