"""The command line and the demo, and the tables, pictures and pages that they print."""
