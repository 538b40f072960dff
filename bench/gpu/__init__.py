"""A prototype of kernels for GPUs, generated from plans; what is measured of it, and of the GPU.

    shape             a plan and a schedule: the sizes of a kernel, and what it refuses
    addresses, exchange_code, writing   the kernel as LLVM code, for a GPU and for the emulation alike
    device_functions  the functions that a kernel calls, as PTX and for the emulation
    emulator          runs a kernel on the CPU: results, races, deadlocks
    ptx               a kernel as PTX and as machine code of a GPU
    cells, backward   the recurrences that are run, forward and backward
    cases             which steps and schedules are checked and timed
    prepare           writes the bundle
    inputs            the arrays that a kernel takes
    bundle            kernels, inputs and expected results as files, which a machine with a GPU needs
    driver            the CUDA driver, called through ctypes
    checks, steps     results and times of the kernels on a GPU
    exchanges, arithmetic, loading   microbenchmarks
    peers             the times of PyTorch and cuDNN
    stages            all of these, each in a process of its own
    predictions       what was expected before anything was measured
    tables            the tables of docs/design/gpu.md
    selfcheck         checks of the target `cuda` of stepnet on a GPU: `python -m bench.gpu.selfcheck`
    together, pointwise   its kernels, which tests run in emulation too: what threads do together, operations

`python -m bench.gpu prepare FOLDER` writes the bundle. `python -m bench.gpu measure FOLDER` runs on a machine
with a GPU, which needs NumPy and PyTorch but not stepnet.
"""
