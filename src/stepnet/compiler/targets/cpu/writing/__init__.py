"""Writing LLVM code: loops and vectors, pointwise operations, elementary functions and casts."""
