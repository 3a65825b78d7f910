"""The browser of the tests of pages."""

from tests.browser import browser

__all__ = ["browser"]
