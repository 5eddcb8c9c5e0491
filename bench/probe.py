"""`python -m bench.probe PATH THRESHOLD [--size-only]`: open a repository; print, as JSON, what memory that takes."""

import gc
import json
import os
import sys
import tracemalloc
from pathlib import Path

from bench.workbench import spec_at
from ullage.engine.engine import Engine


def main() -> None:
    """Open twice: once for the size of the process, once under the eyes of tracemalloc."""
    path, threshold = Path(sys.argv[1]), int(sys.argv[2])
    spec = spec_at(path, flow_file={"swap_threshold": threshold})
    with Engine.open(spec) as repository:
        gc.collect()
        rss = resident_bytes()
        figures = repository.queue("inbox").figures()
    if "--size-only" in sys.argv:
        print(json.dumps({"rss": rss, "swapped": figures.swapped}))
        return
    del repository
    gc.collect()
    tracemalloc.start()
    with Engine.open(spec):
        gc.collect()
        traced, _ = tracemalloc.get_traced_memory()
    print(json.dumps({"rss": rss, "traced": traced, "swapped": figures.swapped}))


def resident_bytes() -> int:
    """The process's resident pages."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
