"""oneDNN's recurrences, through its C interface: an engine for the cells that it knows."""
