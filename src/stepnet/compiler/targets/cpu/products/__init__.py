"""Products of matrices: tiles, the microkernel, packed parameters and contracts."""
