"""Whole models: recurrences and what lies between them, as one net."""
