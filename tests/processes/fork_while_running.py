"""Children that are forked while other threads of the parent run the same recurrence."""

import threading

from work import COUNT, check, in_children

ended = threading.Event()


def run_on() -> None:
    from work import BATCHES, EXPECTED, RNN

    while not ended.is_set():
        assert (RNN(BATCHES[0])[0] == EXPECTED[0][0]).all()


runners = [threading.Thread(target=run_on) for _ in range(2)]
for thread in runners:
    thread.start()
for _ in range(max(3, COUNT // 10)):
    in_children(2, lambda: check(10))
ended.set()
for thread in runners:
    thread.join()
