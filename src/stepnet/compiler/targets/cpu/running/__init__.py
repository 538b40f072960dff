"""Calls of compiled kernels: their words, memory, chains of kernels, and the work after the loop."""
