"""The CPU engine: machine code generated with llvmlite for the processor at hand."""
