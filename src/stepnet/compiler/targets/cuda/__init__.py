"""The target `cuda`: plans as kernels for NVIDIA's GPUs, which also run in an emulation on the CPU."""
