"""Threads that run machine code: how work is handed to them, and how they wait for one another."""
