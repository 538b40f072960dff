"""Dtypes, nested structures of arrays, and checks of arguments: used by every stage."""
