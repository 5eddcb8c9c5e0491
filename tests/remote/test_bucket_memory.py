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

url, endpoint, roots, peaks = sys.argv[1], sys.argv[2], sys.argv[3:], []
for root in roots:
    bucket = ullage.Bucket(url=url + root.rpartition("/")[2], endpoint=endpoint)
    with ullage.open(root, maintain=False) as repository:
        repository.backup(bucket)
    peaks.append(peak())
for root in roots:
    bucket = ullage.Bucket(url=url + root.rpartition("/")[2], endpoint=endpoint)
    assert not ullage.restore(bucket, root + "-restored").check.problems
    peaks.append(peak())
print(json.dumps(peaks))
"""


def test_a_large_content_passes_through_bounded_memory(bucket: Place, tmp_path: Path) -> None:
    """Both ways: of 128 MiB three quarters are never in memory, beyond what a small content needs."""
    assert bucket.bucket is not None
    for name, length in (("small", 1), ("large", CONTENT_BYTES)):
        with ullage.open(tmp_path / name, create=True, maintain=False) as repository:
            repository.handles.put(bytes(range(256)) * (length // 256) or b"x")
    roots = [str(tmp_path / name) for name in ("small", "large")]

    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, bucket.bucket.url, bucket.bucket.endpoint, *roots],
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    small, backed_up, _, restored = json.loads(run.stdout)
    print(f"{(backed_up - small) / MIB:.0f} MiB for a backup, {(restored - small) / MIB:.0f} MiB with the restoration")
    assert backed_up - small < 0.75 * CONTENT_BYTES
    assert restored - small < 0.75 * CONTENT_BYTES
