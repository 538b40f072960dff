"""Entries: the code by which a block computes values, one element or column at a time."""
