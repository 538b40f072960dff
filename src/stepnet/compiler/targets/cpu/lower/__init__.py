"""From a plan to loops over records of fields, and the program that runs them."""
