"""Batching by arrival: requests of many threads, of any lengths, in few calls of one model.

    submit(a) ----------> [a]       is called
    submit(b), (c), (d)             arrive meanwhile
                 -------> [b c d]   are the next call

A request waits for the call that is running, and at most a moment for others: clients that were answered
together send their next requests together. Each result has the bits that a call of the request alone gives,
so nobody can tell who shared the batch. Requests of another dtype or another number of features are a call of
their own, for one of float64 among others of float32 would be cast with them.
"""

from collections.abc import Callable, Sized
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock, Thread

import numpy as np

import stepnet as sn

Array = np.ndarray
Request = tuple[Array, Future[Array]]


class Batcher:
    """A thread that calls a model with the sequences that have arrived; `with` starts and ends it.

    model: gives a result for each sequence of a Ragged. most: the largest number of sequences of a call.
    moment: the seconds without a further request after which the model is called.
    sizes: the number of sequences of each call so far.
    """

    def __init__(self, model: Callable[[sn.Ragged], Array], most: int = 64, moment: float = 1e-4) -> None:
        self.model, self.most, self.moment, self.sizes = model, most, moment, list[int]()
        self.waiting, self.lock, self.is_open = SimpleQueue[Request | None](), Lock(), False

    def submit(self, sequence: Array) -> Future[Array]:
        """The result for a sequence [steps, features], when it is computed, in the dtype of the sequence."""
        sequence, future = np.asarray(sequence), Future[Array]()
        with self.lock:
            if not self.is_open:
                raise RuntimeError("this batcher does not run: submit inside of its `with` block")
            self.waiting.put((sequence, future))
        return future

    def run(self) -> None:
        """Calls the model until None arrives; cancels what is left where an error ends it."""
        try:
            while (first := self.waiting.get()) is not None:
                batch = [first]
                while len(batch) < self.most and (request := self.arriving()) is not None:
                    batch.append(request)
                for alike in by_form(batch):
                    self.answer(alike)
        finally:
            with self.lock:
                self.is_open = False
            while not self.waiting.empty():
                if (left := self.waiting.get()) is not None:
                    left[1].cancel()

    def arriving(self) -> Request | None:
        """The next request if it is there or arrives within a moment; None if not, or if it is the end."""
        try:
            request = self.waiting.get(timeout=self.moment)
        except Empty:
            return None
        if request is None:
            self.waiting.put(None)  # for `run`
        return request

    def answer(self, batch: list[Request]) -> None:
        """Calls the model once, and gives each request its result, or the error of a refused call. Requests
        that were cancelled meanwhile are left out.
        """
        batch = [request for request in batch if request[1].set_running_or_notify_cancel()]
        if not batch:
            return
        self.sizes.append(len(batch))
        failure: BaseException = RuntimeError("the model failed, which ended the batcher")
        try:
            results = self.model(sn.Ragged.from_list([sequence for sequence, _ in batch]))
            check_results(results, len(batch))
            for (_, future), result in zip(batch, results, strict=True):
                future.set_result(result)
        except sn.StepnetError as error:
            failure = error
        except BaseException as error:
            failure = RuntimeError(f"{failure}: {error!r}")
            failure.__cause__ = error
            raise
        finally:
            for _, future in batch:
                if not future.done():
                    future.set_exception(failure)

    def __enter__(self) -> "Batcher":
        self.thread = Thread(target=self.run, name="batcher")
        self.is_open = True
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the thread when all requests are answered."""
        with self.lock:
            self.is_open = False
            self.waiting.put(None)
        self.thread.join()


def by_form(batch: list[Request]) -> list[list[Request]]:
    """The requests of a batch in groups of one dtype and one shape of a step, in the order of arrival."""
    groups = dict[tuple[np.dtype, tuple[int, ...]], list[Request]]()
    for request in batch:
        groups.setdefault((request[0].dtype, request[0].shape[1:]), []).append(request)
    return list(groups.values())


def check_results(results: object, count: int) -> None:
    """Raises a TypeError where a model did not give one result for each of so many sequences."""
    if isinstance(results, Sized) and not isinstance(results, tuple | dict) and len(results) == count:
        return
    raise TypeError(
        f"the model gave {type(results).__name__} for {count} sequences, and must give one array or Ragged, "
        "with a result for each. An RNN gives a pair: lambda sequences: rnn(sequences)[1] gives its memories"
    )
