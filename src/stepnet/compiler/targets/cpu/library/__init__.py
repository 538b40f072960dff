"""Libraries for C: the steps of a call as values, written as code, and linked to files."""
