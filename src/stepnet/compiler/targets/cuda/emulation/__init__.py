"""The emulation: the threads of kernels as fibers on the CPU, and their machine code."""
