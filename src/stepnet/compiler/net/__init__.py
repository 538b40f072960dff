"""Nets: types, the table of operations, the graph, and the interpreter that defines its meaning."""
