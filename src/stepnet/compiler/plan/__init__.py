"""Passes, plans and schedules: from a traced net to the work of an engine, in the order in which it runs."""
