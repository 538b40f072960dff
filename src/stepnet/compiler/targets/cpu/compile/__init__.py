"""Plans as object code: generated, stored on disk, and cached."""
