"""Types that several threads decode are taken apart before there are any."""

import subprocess
import sys

THREADS = """
import sys, threading
import msgspec
import ullage_agent.node.objects
from ullage.contract import ContentRepositoryNode

sys.setswitchinterval(1e-6)
begin = threading.Barrier(4)

def use():
    begin.wait()
    try:
        msgspec.convert({"spec": {}, "status": {}}, ContentRepositoryNode)
    except msgspec.ValidationError:
        pass

threads = [threading.Thread(target=use) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


def test_the_first_use_of_a_type_by_several_threads_ends_no_process() -> None:
    """It ended an agent, whose threads read and wrote its node's object: two times of three, without preparation."""
    for _ in range(6):
        subprocess.run([sys.executable, "-c", THREADS], check=True)
