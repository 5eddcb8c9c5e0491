import os

from hypothesis import settings

from tests.faults import volumes

settings.register_profile(
    "ullage",
    deadline=None,  # a busy machine is slow, not wrong
    print_blob=True,
    derandomize="CI" in os.environ,  # CI says the same of the same code; everywhere else each run looks further
)
settings.load_profile("ullage")

pytest_plugins = ["tests.support", "tests.cluster.fixtures"]


def pytest_report_header() -> str:
    """Which filesystems the tests of real disks run on: without them they are not collected."""
    return volumes.describe()
