"""Kernels on whole arrays of a device: rows moved, sums, products, constants."""
