"""What checkov has against the chart of a release, in all its variants: nothing but what checkov.yaml explains."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

import ullage
from tests.chart.releases import small_release
from tests.chart.variants import EVERYTHING_ON, rendered_variants
from tests.cluster.packages import CHECKOV_LOCK, installed

EXPLAINED = yaml.safe_load(Path(__file__).with_name("checkov.yaml").read_text(encoding="utf-8"))
NETWORK_POLICY = "CKV2_K8S_6"
QUIET = {"LOG_LEVEL": "ERROR", "CKV_SKIP_PACKAGE_UPDATE_CHECK": "true"}
"""It would ask PyPI whether there is a newer one."""


def checkov(path: Path) -> dict[str, Any]:
    """What it says of the manifests in a file. It asks nobody on the network.

    It runs without this environment (`-S`): its packages are others.
    """
    words = ["--file", str(path), "--framework", "kubernetes", "--output=json", "--skip-download", "--soft-fail"]
    done = subprocess.run(
        [sys.executable, "-S", "-W", "ignore", "-m", "checkov.main", *words, "--compact"],
        env={**os.environ, **QUIET, "PYTHONPATH": str(installed(CHECKOV_LOCK)), "TMPDIR": str(path.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def failed(told: dict[str, Any]) -> set[tuple[str, str]]:
    """Each of its complaints: the check, and the object's kind and name."""
    found = set()
    for each in told["results"]["failed_checks"]:
        kind, _, rest = each["resource"].split(".", 2)
        found.add((each["check_id"], f"{kind} {rest.partition('.')[0]}"))
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """By variant, of the chart of a release, which names its images by digest. One at a time: together, a policy of one
    variant would look after the pods of another.
    """
    out = small_release(tmp_path_factory.mktemp("release"))
    paths = rendered_variants(out / f"ullage-{ullage.__version__}.tgz", tmp_path_factory.mktemp("rendered"))
    with ThreadPoolExecutor(2) as lanes:
        return dict(zip((path.stem for path in paths), lanes.map(checkov, paths), strict=True))


def test_all_variants_are_looked_at(told: dict[str, dict[str, Any]]) -> None:
    """None of them is unreadable to it, and most checks pass."""
    assert set(told) == {"default", EVERYTHING_ON, "air-gapped", "gke", "openshift"}
    assert [each["summary"]["parsing_errors"] for each in told.values()] == [0] * len(told)
    assert min(each["summary"]["passed"] for each in told.values()) > 200


def test_every_complaint_is_explained(told: dict[str, dict[str, Any]]) -> None:
    """By a reason for that check and that object; and no reason stays when what it was for is gone."""
    found = set[tuple[str, str]]().union(*map(failed, told.values()))

    assert found == {(check, on) for check, each in EXPLAINED.items() for on in each["objects"]}
    assert all(each["reason"].endswith(".") for each in EXPLAINED.values())


def test_with_its_policies_on_no_pod_is_without_one(told: dict[str, dict[str, Any]]) -> None:
    """The reason says so."""
    assert NETWORK_POLICY not in {check for check, _ in failed(told[EVERYTHING_ON])}
