"""Generators of this folder need the frameworks, so that only its tests are collected."""

from pathlib import Path

HERE = Path(__file__)
collect_ignore = [path.name for path in HERE.parent.glob("*.py") if not path.name.startswith("test_")]
