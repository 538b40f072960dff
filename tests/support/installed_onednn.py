"""A test for whether oneDNN can be used here."""

from stepnet.compiler.targets.onednn.library import library
from stepnet.errors import LibraryError


def missing_onednn() -> str | None:
    """Why oneDNN cannot be used here; None where it can."""
    try:
        library()
    except LibraryError as error:
        return str(error)
    return None
