"""Clients of ``qwenvl serve`` take turns at threads: none waits for all requests of another."""

import asyncio
import threading

import pytest

from qwenvl.use.turns import FairPool


@pytest.fixture
def pool():
    pool = FairPool(1, "test")
    yield pool
    pool.shutdown()


async def begun(pool, done: list, free: threading.Event, *clients: str) -> list[asyncio.Task]:
    """Work of some clients in this order, of which the first is held until it is free."""

    def work(name: str) -> str:
        assert free.wait(60)
        done.append(name)
        return name

    tasks = []
    for client in clients:
        tasks.append(asyncio.create_task(pool.run(client, work, client)))
        await asyncio.sleep(0)
    return tasks


def test_a_client_with_much_work_keeps_no_other_waiting(pool):
    done, free = [], threading.Event()

    async def asked():
        tasks = await begun(pool, done, free, "a", "a", "a", "a", "b", "b")
        free.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(asked()) == ["a", "a", "a", "a", "b", "b"]
    assert done == ["a", "b", "a", "b", "a", "a"]


def test_new_clients_keep_no_old_work_waiting(pool):
    done, free = [], threading.Event()

    async def asked():
        tasks = await begun(pool, done, free, "a", "a", *"bcdefgh")
        free.set()
        await asyncio.gather(*tasks)

    asyncio.run(asked())
    assert done[:3] == ["a", "b", "a"]


def test_work_that_nobody_waits_for_takes_no_thread_for_good(pool):
    done, free = [], threading.Event()

    async def asked():
        running, waiting, last = await begun(pool, done, free, "a", "b", "c")
        waiting.cancel()
        running.cancel()
        await asyncio.sleep(0.05)
        assert not last.done()  # the thread is held by what has begun
        free.set()
        return await last

    assert asyncio.run(asked()) == "c"
    assert done == ["a", "c"]


def test_an_error_of_work_is_that_of_its_client_alone(pool):
    def fails():
        raise ValueError("no")

    async def asked():
        return await asyncio.gather(pool.run("a", fails), pool.run("b", len, "abc"), return_exceptions=True)

    error, found = asyncio.run(asked())
    assert str(error) == "no" and found == 3
