"""Models of other frameworks, read as nets: one value with named axes, and one table of operators on it."""
