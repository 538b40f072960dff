"""Calls that are recorded: the work that a call gives to a device, and schedules that give it again."""
