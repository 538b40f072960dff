"""Explanations, drawings, pictures and reports: values that sources make, and what prints them."""
