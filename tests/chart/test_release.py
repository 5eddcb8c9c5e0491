"""A release: the same digests whenever it is built, and a chart that names just the images beside it."""

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import ullage
from tests.chart.releases import small_release
from tests.chart.test_chart import helm
from tests.cluster.errors import ClusterError
from tools import oci, release


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like dist/."""
    return small_release(tmp_path_factory.mktemp("first"))


def _read(layout: Path, digest: str) -> Any:
    return json.loads((layout / "blobs" / digest.replace(":", "/")).read_bytes())


def test_two_builds_are_the_same_release(released: Path, tmp_path: Path) -> None:
    """Images, chart, statements and lists; at another time and in another folder."""
    again = small_release(tmp_path)

    first, second = ((each / release.DIGESTS).read_text() for each in (released, again))
    assert first == second
    names = {line.split()[1] for line in first.splitlines()}
    assert {"oci/ullage-agent", "oci/ullage-operator", "oci/ullage-spark", "oci/charts/ullage"} < names


def test_two_builds_of_the_python_packages_are_the_same(tmp_path: Path) -> None:
    """The wheel and the source."""
    made: list[dict[str, str]] = []
    for name in ("first", "second"):
        release.add_python(tmp_path / name)
        files = (tmp_path / name).iterdir()
        made.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files})

    assert made[0] == made[1]
    assert {name.removeprefix(f"ullage-{ullage.__version__}") for name in made[0]} == {"-py3-none-any.whl", ".tar.gz"}


def test_every_blob_of_a_layout_has_the_digest_of_its_name(released: Path) -> None:
    """A registry refuses what has not; a manifest names only what is there."""
    blobs = list((released / "oci").rglob("blobs/sha256/*"))

    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == path.name for path in blobs)
    for layout in [*(released / "oci").glob("ullage-*"), released / "oci/charts/ullage"]:
        for listed in json.loads((layout / "index.json").read_bytes())["manifests"]:
            manifest = _read(layout, listed["digest"])
            for blob in [manifest["config"], *manifest["layers"], *filter(None, [manifest.get("subject")])]:
                assert (layout / "blobs" / blob["digest"].replace(":", "/")).stat().st_size == blob["size"]


def test_the_statement_of_an_image_is_about_that_image(released: Path) -> None:
    """It refers to the manifest that is pushed, and names its packages."""
    layout = released / "oci/ullage-agent"
    image = release.tagged(layout)
    listed = json.loads((layout / "index.json").read_bytes())["manifests"]
    (attached,) = [_read(layout, each["digest"]) for each in listed if each["digest"] != image]
    statement = _read(layout, attached["layers"][0]["digest"])

    assert attached["subject"]["digest"] == image
    assert statement["subject"] == [{"name": "ullage-agent", "digest": {"sha256": image.removeprefix("sha256:")}}]
    assert [each["name"] for each in statement["predicate"]["components"]] == ["base", "agent"]
    assert statement["predicate"]["metadata"]["component"]["hashes"][0]["content"] == image.removeprefix("sha256:")


def test_the_chart_of_a_release_names_its_images_by_digest(released: Path) -> None:
    """And no other; Artifact Hub is told the same ones, and the kinds."""
    chart = str(released / f"ullage-{ullage.__version__}.tgz")
    shown = helm("template", "ullage", chart).stdout
    digests = release.image_digests(released)

    images = {f"ullage-{target}@{digest}" for target, digest in digests.items()}
    assert all(image in shown for image in images)
    assert f":{ullage.__version__}\n" not in shown
    annotations = yaml.safe_load(helm("show", "chart", chart).stdout)["annotations"]
    assert {each["image"] for each in yaml.safe_load(annotations["artifacthub.io/images"])} == images
    kinds = {each["kind"] for each in yaml.safe_load(annotations["artifacthub.io/crds"])}
    assert kinds == {"ContentRepository", "ContentRepositoryNode", "ReclamationRun", "ContentBackup", "ContentRestore"}


def test_a_place_that_the_values_lost_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else a release would name an image by a tag, and nobody would see it."""
    monkeypatch.setattr(release, "CHART_PLACES", {"  repository: elsewhere\n": ""})

    with pytest.raises(ValueError, match="elsewhere"):
        release.add_chart(tmp_path, dict.fromkeys(release.TARGETS, "sha256:0"))


def test_a_layer_that_is_packed_already_is_kept_as_it_is(tmp_path: Path) -> None:
    """Buildah writes such ones beside plain ones: packed twice, no node could unpack it."""
    layout = small_release(tmp_path) / "oci/ullage-agent"
    packed = _read(layout, release.tagged(layout))["layers"]
    with tarfile.open(tmp_path / "packed.tar", "w") as archive:
        for path in [layout / "index.json", *layout.glob("blobs/sha256/*")]:
            archive.add(path, path.relative_to(layout))
    index = json.loads((layout / "index.json").read_bytes())
    index["manifests"] = [each for each in index["manifests"] if each["digest"] == release.tagged(layout)]
    (tmp_path / "index.json").write_text(json.dumps(index))
    with tarfile.open(tmp_path / "packed.tar", "a") as archive:  # of two with one name the last counts
        archive.add(tmp_path / "index.json", "index.json")

    image = oci.add_image(oci.Layout(tmp_path / "layout"), tmp_path / "packed.tar", "1")

    assert _read(tmp_path / "layout", image["digest"])["layers"] == packed


def test_a_layer_of_another_kind_is_refused(tmp_path: Path) -> None:
    """It would go under a name that is not its own."""
    small_release(tmp_path)
    archive = tmp_path / "agent.tar"
    archive.write_bytes(archive.read_bytes().replace(b"layer.v1.tar", b"layer.v1.zip"))

    with pytest.raises(ValueError, match="is wanted"):
        oci.add_image(oci.Layout(tmp_path / "layout"), archive, "1")


def test_a_registry_that_is_not_there_is_named(released: Path) -> None:
    """With what was asked of it."""
    with pytest.raises(ClusterError, match="ullage-agent"):
        release.push(released, "127.0.0.1:1/ullage", ["--to-plain-http"])


def test_nothing_is_pushed_or_checked_before_it_is_built(tmp_path: Path) -> None:
    """It says what to do first."""
    with pytest.raises(ValueError, match="make release"):
        release.push(tmp_path, "127.0.0.1:1/ullage")
    with pytest.raises(ValueError, match="make release"):
        release.check(tmp_path)


def test_pushing_needs_a_registry() -> None:
    """`make push` alone says what is missing."""
    command = [sys.executable, "-m", "tools.release", "push", "--"]
    done = subprocess.run(command, cwd=release.ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "registry" in done.stderr
