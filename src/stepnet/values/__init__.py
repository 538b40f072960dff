"""What every stage needs: dtypes, structures of arrays, and the checks of arguments."""
