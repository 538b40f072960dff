"""Reports on files, layouts and machines, as text, as data and as pages."""
