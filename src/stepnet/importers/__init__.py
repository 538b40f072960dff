"""Reads models of other frameworks as nets: one value with named axes, and one table of operators on it."""
