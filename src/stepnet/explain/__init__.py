"""Explanations and drawings: what a plan, a gradient, a graph or the weights of a file are, for people.

`document.py` is the value of an explanation, and `text.py` prints it.
"""
