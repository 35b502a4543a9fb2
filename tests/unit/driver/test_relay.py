"""The mailbox: lines in order, one order in force, and who was heard when."""

import asyncio

from workers.driver.relay import Mailbox


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_are_taken_once_and_in_order():
    async def play():
        box = Mailbox()
        await box.tell(0, ["a", "b"])
        await box.tell(1, ["c"])
        return (await box.take(5.0))[0], (await box.take(0.01))[0]

    assert asyncio.run(play()) == (["a", "b", "c"], [])


def test_a_line_wakes_a_driver_that_waits():
    async def play():
        box = Mailbox()
        taking = asyncio.create_task(box.take(60.0))
        await asyncio.sleep(0)
        await box.tell(0, ["a"])
        return (await asyncio.wait_for(taking, 5.0))[0]

    assert asyncio.run(play()) == ["a"]


def test_an_order_wakes_every_agent_that_waits_and_late_ones_get_it_at_once():
    async def play():
        box = Mailbox()
        waiting = [asyncio.create_task(box.listen(rank, 0, 60.0)) for rank in range(3)]
        await asyncio.sleep(0)
        await box.post("order-1")
        early = await asyncio.wait_for(asyncio.gather(*waiting), 5.0)
        late = await asyncio.wait_for(box.listen(3, 0, 60.0), 5.0)
        again = await box.listen(3, 1, 0.01)
        return [answer[:2] for answer in (*early, late, again)]

    assert asyncio.run(play()) == [(1, "order-1")] * 5


def test_the_silence_of_both_sides_is_told():
    async def play():
        clock = Clock()
        box = Mailbox(clock)
        clock.now = 4.0
        _, _, driver_silent = await box.listen(7, 0, 0.01)
        clock.now = 6.0
        _, silent = await box.take(0.01)
        return driver_silent, silent

    assert asyncio.run(play()) == (4.0, {7: 2.0})
