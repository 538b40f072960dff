"""The command line, the demo, and what both show: tables, pictures and pages."""
