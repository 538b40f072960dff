"""Children of a process whose other threads compile, and free what they compiled, all the time."""

import threading

from work import COUNT, check, compiles, in_children, new_recurrences

ended = threading.Event()


def compile_on() -> None:
    for rnn in new_recurrences():
        compiles(rnn)
        if ended.is_set():
            return


compilers = [threading.Thread(target=compile_on) for _ in range(2)]
for thread in compilers:
    thread.start()
fresh = new_recurrences()
for _ in range(max(2, COUNT // 20)):
    rnn = next(fresh)
    in_children(2, lambda rnn=rnn: compiles(rnn))
ended.set()
for thread in compilers:
    thread.join()
check(10)
