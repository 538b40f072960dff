"""Measurements and checks of the target `cuda` on a GPU, and in its emulation to try them.

    parts             all measurements, each in a process of its own, the most valuable first
    place             the GPU, or the emulation, that they run on
    cells             the recurrences that are run
    placed            a recurrence on a device with a loop of one's choice: its results, its times, the truth
    selfcheck         the driver, device functions and operations; by `together` and `pointwise`
    sanitized         a kernel of each kind, for compute-sanitizer
    engine_times      loops as they are chosen, and whole calls, beside their estimates
    schedules         loops by schedules of one's choice
    calibrate         from their times to the row of `tensor/facts.py`
    exchanges, arithmetic   microbenchmarks in CUDA C++, by `microbenchmarks`
    memory_rates      moves, sums and products
    selfcheck_torch   modules of PyTorch, beside torch.nn
    peers             cuDNN's layers in other numbers, and for large batches

`python -m bench.gpu report FILE` runs all parts, `part NAME` one of them, and `facts FILE` prints the row of
the cost model. Other runtimes are beside stepnet in `python -m bench --group gpu`: parts of the report.
"""
