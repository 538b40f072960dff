"""Figures of programs for devices, beside those of other libraries for them (`python -m bench.devices`)."""
