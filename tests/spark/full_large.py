"""One content of 20 GiB through Spark, in and out. `make spark-full` names this module, and nothing else collects it:
it takes minutes, and as much disk.
"""

import os
import random
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from bench.serving import node
from ullage.contentfile import ContentFile
from ullage_spark import contents_from, snapshot

MB: Final = 1 << 20
GIB: Final = 1 << 30
SIZE: Final = int(os.environ.get("ULLAGE_LARGE_GIB", "20")) * GIB
PATTERN: Final = random.Random(20).randbytes(MB)
PLACES: Final = 100
GROWTH_MAX: Final = 96 * MB
"""By how much a task may grow: a window of a file, what waits in its connection, and a piece that it looks at."""


def piece(number: int) -> bytes:
    """A MiB of it, unlike any other."""
    return number.to_bytes(8, "big") + PATTERN[8:]


def pieces(row: Mapping[str, Any]) -> Iterator[bytes]:
    return map(piece, range(row["count"]))


def peak() -> int:
    """The most that this process ever took, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def looked_at(_: pa.RecordBatch, files: list[ContentFile]) -> Iterator[pa.RecordBatch]:
    """Of each its size, a checksum of all of it, how many of a hundred places were as they should be, and by how much
    this process grew.
    """
    for file in files:
        before, crc, size, right = peak(), 0, 0, 0
        while data := file.read(4 * MB):
            crc, size = zlib.crc32(data, crc), size + len(data)
        chance = random.Random(1)
        for place in (chance.randrange(size - 2 * MB) for _ in range(PLACES)):
            number, start = divmod(place, MB)
            right += file.range(place, 1_000) == (piece(number) + piece(number + 1))[start : start + 1_000]
        yield pa.RecordBatch.from_pydict({"size": [size], "crc": [crc], "right": [right], "growth": [peak() - before]})


def test_a_content_of_20_gib_is_written_and_read_in_constant_memory(spark: SparkSession, tmp_path: Path) -> None:
    """By an iterator, and as a file: all of it once, in order, and a place of it."""
    assert shutil.disk_usage(tmp_path).free > SIZE + 5 * GIB, "the disk has no room for it"
    crc = 0
    for number in range(SIZE // MB):
        crc = zlib.crc32(piece(number), crc)
    with node(tmp_path / "node") as (there, pid):
        assert there.flight is not None
        agent = psutil.Process(pid)
        before = agent.memory_info().rss
        made = spark.createDataFrame([(SIZE // MB, {"name": "large"})], "count bigint, attributes map<string,string>")
        writer = contents_from(made.coalesce(1), pieces).write.format("ullage").mode("append")
        writer.options(endpoint=there.flight, queue="in").save()
        with snapshot(spark, endpoint=there.flight) as held:
            found = held.with_content(looked_at, "size bigint, crc bigint, right bigint, growth bigint", as_files=True)
            (row,) = found.collect()
        grown = agent.memory_info().rss - before

    print(f"{SIZE // GIB} GiB: the task grew by {row.growth / MB:.0f} MiB, the agent by {grown / MB:.0f} MiB")
    assert (row.size, row.crc, row.right) == (SIZE, crc, PLACES)
    assert row.growth < GROWTH_MAX
    assert grown < 2 * GROWTH_MAX
