import json
import subprocess
import sys
from pathlib import Path

import ullage
from tests.places import Place

MIB = 1 << 20
CONTENT_BYTES = 128 * MIB

PROGRAM = """
import json, re, sys, ullage

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10

way, url, endpoint, *roots = sys.argv[1:]
peaks = []
for root in roots:
    bucket = ullage.Bucket(url=url + root.rpartition("/")[2], endpoint=endpoint)
    if way == "backup":
        with ullage.open(root, maintain=False) as repository:
            repository.backup(bucket)
    else:
        assert not ullage.restore(bucket, root + "-restored").check.problems
    peaks.append(peak())
print(json.dumps(peaks))
"""


def test_a_large_content_passes_through_bounded_memory(bucket: Place, tmp_path: Path) -> None:
    """Both ways: of 128 MiB three quarters are never in memory, beyond what a small content needs."""
    for name, length in (("small", 1), ("large", CONTENT_BYTES)):
        with ullage.open(tmp_path / name, create=True, maintain=False) as repository:
            repository.handles.put(bytes(range(256)) * (length // 256) or b"x")

    grown = {way: _growth(way, bucket, tmp_path) for way in ("backup", "restoration")}

    print(", ".join(f"{bytes_ / MIB:.0f} MiB for a {way}" for way, bytes_ in grown.items()))
    assert max(grown.values()) < 0.75 * CONTENT_BYTES


def _growth(way: str, bucket: Place, root: Path) -> int:
    """By how many bytes the peak of a process grows that has done it with the small content, at the large one."""
    assert bucket.bucket is not None
    # A process each: what the allocator keeps of the one way is not what the other one takes.
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, way, bucket.bucket.url, bucket.bucket.endpoint]
        + [str(root / name) for name in ("small", "large")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    small, large = json.loads(run.stdout)
    return int(large - small)
