"""One model behind a web server, Starlette on Uvicorn, with batching by arrival (`batching.py`).

The model tells the speaker of an utterance: the GRU of stepnet's demo with its dense layer, as one graph. A
request is {"frames": [[12 numbers], ...]}, of any length, and its answer {"speaker": 3, "scores": [...]}.

Run it from the root of the repository. It starts a server, sends it the test utterances of Japanese Vowels by
16 clients, compares each answer with a call of the utterance alone, bit by bit, and stops (some seconds):

    .venv/bin/python examples/serving.py
    .venv/bin/python examples/serving.py --port 8000      serves until Control-C

It needs `pip install starlette uvicorn`.
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import uvicorn
from batching import Batcher
from safetensors.numpy import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import stepnet as sn

DATA = Path(sn.__file__).parent / "cli" / "data"
FEATURES, CLIENTS, HOST = 12, 16, "127.0.0.1"
Array = np.ndarray


def speaker_model() -> sn.Graph:
    """The scores of nine speakers for each utterance."""
    file = DATA / "speaker_gru.safetensors"
    arrays, gru = load_file(file), sn.load(file, recurrent_only=True)
    head = {"W": arrays["head.weight"].T, "b": arrays["head.bias"]}
    return sn.Graph(lambda x, head: sn.reduce(gru(x)[0], "last") @ head["W"] + head["b"], head)


def checked_frames(body: Any) -> Array:
    """The frames of a request [steps, features]; a ValueError for anything else than finite numbers."""
    if not isinstance(body, dict) or "frames" not in body:
        raise ValueError('a request is {"frames": [[...], ...]}')
    array = np.array(body["frames"])
    if array.shape == (0,):  # an utterance without steps
        array = array.reshape(0, FEATURES)
    if array.dtype.kind not in "iuf" or array.ndim != 2 or array.shape[1] != FEATURES:
        raise ValueError(f"these are {array.dtype} of shape {list(array.shape)}")
    with np.errstate(over="ignore"):  # in float32
        array = array.astype("float32")
    if not np.isfinite(array).all():
        raise ValueError("one of these is not finite in float32")
    return array


def app(model: sn.Graph) -> Starlette:
    """The web application: `POST /speaker`. Its `state.batcher` has the sizes of the calls."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        """Runs the batcher while the server runs."""
        with Batcher(model) as batcher:
            app.state.batcher = batcher
            yield

    async def speaker(request: Request) -> JSONResponse:
        """Answers a request, or says what is wrong with it."""
        try:
            frames = checked_frames(await request.json())
        except (ValueError, RecursionError) as error:
            return JSONResponse({"error": f"frames are lists of {FEATURES} numbers: {error}"}, 400)
        scores = await asyncio.wrap_future(request.app.state.batcher.submit(frames))
        return JSONResponse({"speaker": int(scores.argmax()) + 1, "scores": scores.tolist()})

    return Starlette(routes=[Route("/speaker", speaker, methods=["POST"])], lifespan=lifespan)


@contextmanager
def running(app: Starlette) -> Generator[int]:
    """Runs an application in a thread; gives the port of its server."""
    # A free port, and the program's own logging.
    server = uvicorn.Server(uvicorn.Config(app, HOST, 0, log_config=None, ws="none"))
    thread = Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise SystemExit("the server did not start")
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def asked(port: int, utterances: list[Array], clients: int) -> list[tuple[Any, float]]:
    """The answers to utterances, which several clients send at the same time, and the seconds of each."""
    answers: list[Any] = [None] * len(utterances)

    def client(first: int) -> None:
        """Sends every so many utterances from the first on, one after the other."""
        with closing(HTTPConnection(HOST, port, timeout=30)) as connection:
            for place in range(first, len(utterances), clients):
                body = json.dumps({"frames": utterances[place].tolist()})
                begun = time.perf_counter()
                connection.request("POST", "/speaker", body)
                answer = connection.getresponse().read()
                answers[place] = json.loads(answer), time.perf_counter() - begun

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return answers


def utterances_to_test(count: int) -> tuple[list[Array], list[int]]:
    """The frames of utterances, and their speakers."""
    rows = parquet.read_table(DATA / "japanese_vowels.parquet", filters=[("split", "==", "test")])
    rows = rows.slice(0, count)
    return [np.array(one, "float32") for one in rows["frames"].to_pylist()], rows["speaker"].to_pylist()


def main(arguments: list[str] | None = None) -> None:
    """Serves on a port, or serves the test utterances, and prints how the answers were and what they took."""
    parser = argparse.ArgumentParser(description="Serve a model with batching by arrival.")
    parser.add_argument("--port", type=int)
    parser.add_argument("--requests", type=int, default=370)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    options = parser.parse_args(arguments)
    model = speaker_model()
    application = app(model)
    if options.port is not None:
        uvicorn.run(application, host=HOST, port=options.port, ws="none")
        return
    utterances, speakers = utterances_to_test(options.requests)
    with running(application) as port:
        asked(port, utterances[: options.clients], options.clients)  # the first calls compile
        begun = time.perf_counter()
        answers = asked(port, utterances, options.clients)
        seconds = time.perf_counter() - begun
    alone = [model(sn.Ragged.from_list([one]))[0].tolist() for one in utterances]
    same = sum(answer["scores"] == scores for (answer, _), scores in zip(answers, alone, strict=True))
    right = sum(answer["speaker"] == one for (answer, _), one in zip(answers, speakers, strict=True))
    p50, p99 = (1000 * float(np.percentile([taken for _, taken in answers], part)) for part in (50, 99))
    sizes = application.state.batcher.sizes
    print(
        f"{len(answers)} requests of {options.clients} clients in {seconds:.2f} s, {len(sizes)} calls so far"
    )
    print(f"a request takes {p50:.1f} ms (median), {p99:.1f} ms (99 of 100)")
    print(f"{same} of {len(answers)} answers have the bits of a call of the utterance alone")
    print(f"{100 * right / len(answers):.1f}% of the speakers right")


if __name__ == "__main__":
    main()
