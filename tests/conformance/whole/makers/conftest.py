"""Generators of this folder need the frameworks, so that none of it is collected."""

collect_ignore_glob = ["*.py"]
