"""The processes that are timed: one module for each runtime, and the protocol that all speak.

Each runs in the environment that its runtime is installed in, where stepnet may not be. So nothing
here imports stepnet, but `stepnet.py` alone; and this folder is started as a package by itself.
"""
