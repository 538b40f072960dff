"""Whole models as one net: recurrences, and the operations between them."""
