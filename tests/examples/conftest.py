"""The browser of the tests of pages."""

from browsers import browser

__all__ = ["browser"]
