"""What people read about plans and machines, as plain text, and the same facts as data."""
