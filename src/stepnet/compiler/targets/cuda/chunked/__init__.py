"""Loops whose memory is a matrix, in chunks of steps: products of matrices on tensor cores."""
