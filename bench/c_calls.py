"""Times a call of a library that was built from C, beside the same call in Python.

    python -m bench.c_calls

A GRU of 64 inputs and 64 units, one sequence, float32, one thread. Both sides alternate in each round; the
table has the medians of the rounds, in microseconds a call, and the sizes of the library's files.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

import stepnet as sn
from stepnet import cells
from stepnet.build import build

SIZE, STEPS, ROUNDS = 64, (1, 10, 100), 15
CALLS = {1: 20000, 10: 5000, 100: 500}
SOURCE = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "gru.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* Reads lines "steps calls" and answers with the microseconds of one call. */
int main(void)
{
    static float x[100 * 64], y[100 * 64], h[2][64];
    gru_context *context;
    long long steps, calls;
    if (gru_new(&context)) return 1;
    for (int i = 0; i < 100 * 64; i++) x[i] = (i % 13) / 13.0f;
    while (scanf("%lld %lld", &steps, &calls) == 2) {
        int64_t offsets[] = {0, steps};
        double begun = now();
        for (long long i = 0; i < calls; i++)
            if (gru_run(context, 1, offsets, x, h[i & 1], y, h[~i & 1])) return 2;
        printf("%.4f\\n", (now() - begun) / calls);
        fflush(stdout);
    }
    return 0;
}
"""


def in_python(rnn: sn.RNN, steps: int) -> float:
    """Returns the microseconds of a call in Python of an array [1, steps, 64]."""
    x, h = np.zeros((1, steps, SIZE), "float32"), np.zeros((1, SIZE), "float32")
    calls = CALLS[steps] // 4
    for _ in range(10):
        rnn(x, h, engine="llvm")
    begun = time.perf_counter()
    for _ in range(calls):
        _, h = rnn(x, h, engine="llvm")
    return (time.perf_counter() - begun) / calls * 1e6


def in_a_stream(rnn: sn.RNN) -> float:
    """Returns the microseconds of one step of a stream in Python."""
    stream, x = rnn.stream(1, engine="llvm"), np.zeros((1, SIZE), "float32")
    calls = CALLS[1]
    begun = time.perf_counter()
    for _ in range(calls):
        stream.step(x)
    return (time.perf_counter() - begun) / calls * 1e6


def main() -> None:
    """Builds the library and a C program, times both, and prints the table."""
    sn.set_threads(1)
    rnn = cells.rnn("gru", cells.CELLS["gru"].parameters(inputs=SIZE, hidden=SIZE))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = build(rnn, folder, name="gru", inputs=SIZE)
        (folder / "main.c").write_text(SOURCE)
        program = folder / "main"
        command = ["cc", "-O2", str(folder / "main.c"), f"-I{folder}", str(made.static), "-o", str(program)]
        subprocess.run(command, check=True)
        rounds: dict[str, list[float]] = {}
        with subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdin is not None
            assert running.stdout is not None
            for _ in range(ROUNDS):
                for steps in STEPS:
                    running.stdin.write(f"{steps} {CALLS[steps]}\n")
                    running.stdin.flush()
                    rounds.setdefault(f"C {steps}", []).append(float(running.stdout.readline()))
                    rounds.setdefault(f"Python {steps}", []).append(in_python(rnn, steps))
                rounds.setdefault("stream 1", []).append(in_a_stream(rnn))
            running.stdin.close()
        for steps in STEPS:
            c, python = (median(rounds[f"{side} {steps}"]) for side in ("C", "Python"))
            print(f"{steps:4} steps: C {c:8.2f} us, Python {python:8.2f} us, ratio {python / c:5.2f}")
        print(f"a step of a stream in Python: {median(rounds['stream 1']):.2f} us")
        weights = sum(array.nbytes for array in rnn.params.values())
        print(f"weights: {weights} bytes")
        for path in (made.shared, made.static):
            print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    sys.exit(main())
