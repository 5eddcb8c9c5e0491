import asyncio

from ullage_operator.repository.reconcile import WorkQueue

ONE, OTHER, HEALTHY = ("data", "one"), ("data", "other"), ("data", "healthy")


async def waiting(queue: WorkQueue) -> asyncio.Task[tuple[str, str]]:
    """A worker that has looked, and found nothing that is due."""
    worker = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not worker.done()
    return worker


def test_no_repository_has_two_workers() -> None:
    """What changes while it is worked on is taken once more, when that is over; others need not wait for it."""

    async def run() -> None:
        queue = WorkQueue(2)
        for key in (ONE, ONE):
            queue.add(key)
        assert await queue.take() == ONE
        for key in (ONE, OTHER):
            queue.add(key)
        assert await queue.take() == OTHER
        worker = await waiting(queue)
        queue.done(ONE)
        assert await worker == ONE

    asyncio.run(run())


def test_who_waits_is_woken_by_what_is_due_earlier() -> None:
    """An hour's wait ends with the event that brings it forward, and each of several workers gets something."""

    async def run() -> None:
        queue = WorkQueue(2)
        queue.add(ONE, 3600)
        workers = [await waiting(queue) for _ in range(2)]
        queue.add(ONE, 0.01)
        queue.add(OTHER)
        assert set(await asyncio.gather(*workers)) == {ONE, OTHER}

    asyncio.run(asyncio.wait_for(run(), 30))


def test_who_fails_again_and_again_holds_up_nobody_else() -> None:
    """Half of the workers are for keys that have not failed; who fails gets the other half, one after the other."""

    async def run() -> None:
        queue = WorkQueue(2)
        for key in (ONE, OTHER):
            queue.add(key)
            queue.failed(await queue.take())
        queue.add(ONE)
        assert await queue.take() == ONE
        queue.add(OTHER)
        worker = await waiting(queue)
        queue.add(HEALTHY)
        assert await worker == HEALTHY
        worker = await waiting(queue)
        queue.done(ONE)
        assert await worker == OTHER

    asyncio.run(asyncio.wait_for(run(), 30))
