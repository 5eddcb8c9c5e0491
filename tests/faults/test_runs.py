"""A run that can't begin, or is interrupted while it begins, is none."""

import threading
from pathlib import Path
from typing import Any

import pytest

import ullage


def test_a_run_for_which_there_is_no_thread_keeps_no_other_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses a thread more, as under RLIMIT_NPROC; the next run finds nothing under way."""

    def refuse(thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    with ullage.open(tmp_path / "r", create=True, maintain=False) as repository:
        with monkeypatch.context() as refused:
            refused.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                repository.reclamation.reclaim()

        assert repository.reclamation.reclaim().report is not None
