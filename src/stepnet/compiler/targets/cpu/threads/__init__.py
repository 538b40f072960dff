"""Threads that run machine code: the handover of tasks to them, and their waiting for one another."""
