"""`POST /v1/backup`: a client chooses where, but only within the folder that the configuration names."""

from pathlib import Path

import pytest

from tests.service.running import Running, document_at


def refusal(running: Running, destination: Path) -> str:
    """What the service says to a backup that it does not write."""
    answer = running.client.post("/v1/backup", json={"destination": str(destination)})
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (400, "invalid-argument"), answer.text
    return str(answer.json()["detail"])


def test_without_a_folder_no_backup_is_written(running: Running, tmp_path: Path) -> None:
    """The default: a client made directories and files wherever the service's process could."""
    assert "spec.service.backupDirectory names no folder" in refusal(running, tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("where", ["elsewhere", "backups/../elsewhere", "backups-of-others", "backups/link/b"])
def test_a_backup_goes_nowhere_else(where: str, tmp_path: Path) -> None:
    """Neither beside the folder, nor up from it, nor through a link that lies in it."""
    backups = tmp_path / "backups"
    (tmp_path / "elsewhere").mkdir()
    backups.mkdir()
    (backups / "link").symlink_to(tmp_path / "elsewhere")
    with Running(document_at(tmp_path / "r", service={"backup_directory": str(backups)})) as running:
        said = refusal(running, tmp_path / where)
        written = running.client.post("/v1/backup", json={"destination": f"{backups}/a/b"})

    assert str(backups) in said
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert written.status_code == 200
    assert (backups / "a" / "b" / "backup.json").is_file()
