"""Wake: no notice between looking and waiting is lost, and closing ends every wait."""

import asyncio
import threading

from service.wake import Wake


def test_a_notice_given_between_looking_and_waiting_ends_the_wait_at_once() -> None:
    wake = Wake()
    seen = wake.generation
    wake.notify()
    assert wake.wait(60, since=seen) == seen + 1
    assert asyncio.run(wake.wait_async(60, since=seen)) == seen + 1


def test_a_wait_without_news_ends_with_its_timeout_and_the_same_generation() -> None:
    wake = Wake()
    assert wake.wait(0.001) == wake.generation
    assert asyncio.run(wake.wait_async(0.001, since=wake.generation)) == wake.generation


def test_a_notice_from_a_thread_wakes_threads_and_event_loops() -> None:
    wake = Wake()
    waiting = threading.Thread(target=wake.wait, args=(60, wake.generation))
    waiting.start()

    async def several() -> list[int]:
        since = wake.generation
        waits = [asyncio.create_task(wake.wait_async(60, since)) for _ in range(3)]
        await asyncio.sleep(0)
        threading.Thread(target=wake.notify).start()
        return await asyncio.gather(*waits)

    assert asyncio.run(several()) == [1, 1, 1]
    waiting.join(10)
    assert not waiting.is_alive()


def test_closing_ends_present_and_future_waits() -> None:
    wake = Wake()

    async def wait_then_close() -> None:
        waiting = asyncio.create_task(wake.wait_async(60))
        await asyncio.sleep(0)
        wake.close()
        await waiting
        await wake.wait_async(60, since=wake.generation)

    asyncio.run(wait_then_close())
    wake.wait(60)
    assert wake.closed


def test_a_wait_on_a_loop_that_has_closed_does_not_break_later_notices() -> None:
    wake = Wake()

    async def abandon() -> None:
        asyncio.create_task(wake.wait_async(60)).add_done_callback(lambda task: task.cancelled())
        await asyncio.sleep(0)

    asyncio.run(abandon())
    wake.notify()
    assert wake.generation == 1
