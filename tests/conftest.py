import os
from contextlib import ExitStack

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests import disk
from tests.faults import volumes

settings.register_profile(
    "ullage",
    deadline=None,  # a busy machine is slow, not wrong
    print_blob=True,
    derandomize="CI" in os.environ,  # CI says the same of the same code; everywhere else each run looks further
)
settings.load_profile("ullage")

pytest_plugins = ["tests.support", "tests.places", "tests.failing_files", "tests.cluster.fixtures"]

STORY = "tests/e2e/"
"""Its modules are chapters on one cluster: one worker tells them, while the others go on with the rest."""

LONGEST = (
    STORY,
    "tests/crash/test_crash_states.py",
    "tests/spark/test_kills.py",
    "tests/crash/test_call_sites.py",
    "tests/spark/test_connect.py",
    "tests/cluster/test_operator_faults.py",
    "tests/cluster/test_scenario.py",
    "tests/spark/test_locality.py",
    "tests/service/test_generated_clients.py",
    "tests/rot/test_rot.py",
    "tests/test_bench.py",
    "tests/test_bench_check.py",
    "tests/spark/test_examples.py",
    "tests/spark/test_jobs.py",
    "tests/service/test_kill.py",
    "tests/engine/flowfile/test_million.py",
    "tests/stress/test_stress.py",
)
"""What takes minutes, the longest first. Otherwise whoever has most tests goes first, and some of these would be last:
one worker at work, and the others at rest.
"""


class _LongestFirst(LoadFileScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return STORY if nodeid.startswith(STORY) else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        for scope in reversed(LONGEST):
            if scope in self.workqueue:
                self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """With `--dist loadfile`, what a worker takes is a module, and the whole story."""
    return _LongestFirst(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Which filesystems the tests of real disks run on, without which they are not collected, and where the others."""
    return [volumes.describe(), f"files of the other tests: {config.stash.get(FILES, 'where pytest is told')}"]


FILES = pytest.StashKey[str]()
"""Where temporary files are, in words for people."""


@pytest.hookimpl(tryfirst=True)  # before pytest itself chooses a place
def pytest_configure(config: pytest.Config) -> None:
    """Temporary files lie on a disk in memory, unless `--basetemp` says where; there those of a failed test stay, which
    otherwise go with the disk.
    """
    if hasattr(config, "workerinput") or config.option.basetemp:
        return
    if reason := disk.why_not():
        config.stash[FILES] = f"on the machine's own disk ({reason})"
        return
    stack = ExitStack()
    config.add_cleanup(stack.close)
    config.option.basetemp = str(stack.enter_context(disk.in_memory()) / "t")
    config.stash[FILES] = "on an ext4 in memory; --basetemp=DIRECTORY has them there, and keeps a failed test's"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Failures are named as they happen, not only at the end, which a run that is cut off does not reach."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        session.config.pluginmanager.register(_NamedAtOnce(reporter))


class _NamedAtOnce:
    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.splitlines()[0] if crash is not None and crash.message else ""
            self._reporter.write_line(f"\nFAILED in {report.when}: {report.nodeid} {why}".rstrip())
