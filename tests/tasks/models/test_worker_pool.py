"""Workers that share what there is to do."""

import asyncio

import pytest

from tasks.models.engine import WorkerPool


async def test_a_stand_in_works_while_another_waits():
    todo, done, may_go_on = iter(range(10)), [], asyncio.Event()

    async def work():
        for number in todo:
            if number == 0:
                workers.add_spare()
                await may_go_on.wait()
            done.append(number)
        may_go_on.set()

    workers = WorkerPool(work, 1)
    await asyncio.wait_for(workers.finish(), 5)
    assert done == [*range(1, 10), 0]


async def test_stand_ins_are_limited():
    working, peak = 0, 0
    release = asyncio.Event()

    async def work():
        nonlocal working, peak
        working += 1
        peak = max(peak, working)
        await release.wait()

    workers = WorkerPool(work, 4)
    for _ in range(100):
        workers.add_spare()
    asyncio.get_running_loop().call_later(0.05, release.set)
    await workers.finish()
    assert peak == 4 + 8


async def test_what_one_raises_ends_all_and_is_raised():
    ended = []

    async def work():
        try:
            if len(ended) == 0 and asyncio.current_task().get_name() == "bad":
                raise ValueError("no")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(True)
            raise

    workers = WorkerPool(work, 3)
    next(iter(workers._tasks)).set_name("bad")
    with pytest.raises(ValueError, match="no"):
        await asyncio.wait_for(workers.finish(), 5)
    assert ended == [True, True]
