"""Every command of docs/quickstart.md, typed as it stands on two real nodes: from nothing to reclaimed bytes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.documents import ROOT, Command, Shell, commands
from tests.cluster import images
from tests.cluster.node import Cluster
from tests.cluster.release import BALLAST, KINDS

DOCUMENT = ROOT / "docs/quickstart.md"
NOT_HERE = {
    "kubectl port-forward": "it would stay when its shell is gone",
    "make cluster": "the cluster is there",
}
PLACE = "data"
PINNED_BYTES_MIN = 50 << 20
"""Dead bytes in files of which something lives: what the run is for."""


@pytest.fixture
def quickstart(cluster: Cluster, tmp_path: Path) -> Iterator[Shell]:
    """A shell on a cluster that has the images and nothing else of ours, before and after."""
    for target in ("agent", "operator"):
        cluster.load(images.archive(target))
    yield Shell(cluster, tmp_path, NOT_HERE)
    if "contentrepositories" in cluster.kubectl("get", "crds"):  # the operator must be there for it
        cluster.kubectl("delete", "contentrepositories", "--all", f"--namespace={PLACE}", "--timeout=120s")
    cluster.kubectl("delete", "namespace", PLACE, "ullage-system", "--ignore-not-found", "--timeout=120s")
    kinds = [f"{each}.ullage.dev" for each in KINDS]
    cluster.kubectl("delete", "crd", *kinds, "--ignore-not-found", "--timeout=60s")


def _typed(shell: Shell, told: list[Command]) -> str:
    """What is printed, as it would stand on a terminal."""
    printed = [f"$ {each.text}\n{shell.type(each.text)}" for each in told if not each.text.startswith(tuple(NOT_HERE))]
    print("".join(printed))
    return "".join(printed)


def _disk_bytes(cluster: Cluster) -> int:
    """What the content files of all nodes take, from outside."""
    tops = [node.disk / "data" / PLACE / "flows" / "c1" for node in cluster.nodes.values()]
    files = [path for top in tops for path in top.rglob("*") if path.is_file() and path.name != BALLAST]
    return sum(path.stat().st_blocks * 512 for path in files)


def test_the_quickstart_leads_from_nothing_to_reclaimed_bytes(quickstart: Shell, cluster: Cluster) -> None:
    """Each section in turn: content comes, most of it is done with, a run gives its bytes back."""
    sections: dict[str, list[Command]] = {}
    for each in commands(DOCUMENT):
        sections.setdefault(re.sub(r"^\d+\. ", "", each.heading), []).append(each)
    ends = list(sections).index("The bytes come back")
    for section in list(sections.values())[:ends]:
        _typed(quickstart, section)
    full = _disk_bytes(cluster)

    told = _typed(quickstart, sections["The bytes come back"])

    assert re.search(r"^\S+/now +flows +Completed +2 +2 ", told, re.MULTILINE)
    assert _disk_bytes(cluster) < full - PINNED_BYTES_MIN
    cluster.wait_until("whole files go by themselves", lambda: _disk_bytes(cluster) < full // 10, seconds_max=180)
    for section in list(sections.values())[ends + 1 :]:
        _typed(quickstart, section)
    assert _disk_bytes(cluster) > 0
