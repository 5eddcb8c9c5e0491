"""Writes what is made from something else: CRDs, install.yaml, files of the chart, tables of pages in docs/.

`python -m tools.generate` writes what is stale; with `--check` it names that and fails.
"""

import sys
from pathlib import Path
from typing import Final

from tools import chart, conditions, configuration, crds, wire

ROOT: Final = Path(__file__).parents[1]


def main() -> int:
    """Write, or check."""
    definitions = crds.texts()
    made = {**definitions, **chart.texts(definitions), **configuration.texts(), **conditions.texts(), **wire.texts()}
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        sys.stderr.writelines(f"{path.relative_to(ROOT)} is stale: run `make generate`\n" for path in stale)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
