"""Those who ask: coroutines that take one request after the other."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Crew:
    """Workers on one loop: as many as there are places, and another for each that waits for its next attempt
    and so holds none. Each works until there is nothing left.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], places: int) -> None:
        self._work = work
        self._left = max(8, places // 2)  # who may still join
        self._tasks = {asyncio.ensure_future(work()) for _ in range(places)}

    def stand_in(self) -> None:
        """One more worker, unless there are many already."""
        if self._left:
            self._left -= 1
            self._tasks.add(asyncio.ensure_future(self._work()))

    async def finish(self) -> None:
        """Returns when nothing is left to do; raises what a worker raises, and then ends the others."""
        try:
            while self._tasks:
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
                self._tasks -= done
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
