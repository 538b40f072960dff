"""What frameworks' operators on arrays mean for sequences without padding: a table for all of them."""
