"""Values for clusters that are not here: each renders, says that nobody tried it, and changes something."""

from pathlib import Path

import pytest
import yaml

from tests.chart.test_chart import CHART, helm

PROFILES = sorted(CHART.glob("profiles/*.yaml"))


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_a_profile_renders_another_installation(profile: Path) -> None:
    """By values that the chart knows: its schema refuses others."""
    plain, profiled = helm("template", "ullage", str(CHART)), helm("template", "ullage", str(CHART), "-f", str(profile))

    assert profiled.returncode == 0, profiled.stderr
    assert list(yaml.safe_load_all(profiled.stdout)) != list(yaml.safe_load_all(plain.stdout))
    assert profile.read_text(encoding="utf-8").startswith("# Untested: ")


def test_install_md_names_every_profile() -> None:
    """With the word that matters."""
    told = (CHART.parents[1] / "docs/install.md").read_text(encoding="utf-8")

    assert {path.stem for path in PROFILES} == {"air-gapped", "gke", "openshift"}
    assert all(f"profiles/{path.name}" in told for path in PROFILES)
