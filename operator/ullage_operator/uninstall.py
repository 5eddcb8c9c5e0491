"""`python -m ullage_operator.uninstall Refuse|Delete SECONDS [NAMESPACE...]`: what the chart runs first of all.

Only the operator takes its finalizers off: a ContentRepository that outlives it could never be deleted, nor could the
object of a node.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence

from ullage_operator.cluster.api import ApiClient, connection_of_this_process
from ullage_operator.content import let_go_of_all

POLL_SECONDS = 2.0


async def uninstall(api: ApiClient, namespaces: Sequence[str | None], *, delete: bool, seconds: float) -> str:
    """Wait until there is no repository, and delete those there are if told to; what is in the way after that, empty if
    nothing is.
    """
    end = time.monotonic() + seconds
    while found := [each for place in namespaces for each in (await api.list("ContentRepository", place))[0]]:
        metadata = [each["metadata"] for each in found]
        names = ", ".join(f"{each['namespace']}/{each['name']}" for each in metadata)
        if not delete:
            return f"delete these first, or set uninstall.repositories=Delete: {names}"
        for each in metadata:
            if "deletionTimestamp" not in each:
                await api.delete("ContentRepository", each["namespace"], each["name"])
        if time.monotonic() > end:
            return f"still there after {seconds:g} s, see their status: {names}"
        await asyncio.sleep(POLL_SECONDS)
    for place in namespaces:  # of repositories that were taken away without the operator's doing
        await let_go_of_all(api, place)
    return ""


async def main(policy: str, seconds: str, *namespaces: str) -> int:
    """0 if the operator may go."""
    async with contextlib.aclosing(ApiClient(await connection_of_this_process())) as api:
        problem = await uninstall(api, namespaces or [None], delete=policy == "Delete", seconds=float(seconds))
    if problem:
        sys.stderr.write(problem + "\n")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
