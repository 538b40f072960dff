"""A GPU by the CUDA driver: its library, loaded kernels, copies, and work that is given again."""
