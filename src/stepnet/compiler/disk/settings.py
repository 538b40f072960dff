"""Settings of the cache from environment variables: its folder, its size limit, and whether it is used.

STEPNET_CACHE       0 turns the cache off
STEPNET_CACHE_DIR   its folder; by default one in the system's folder for caches
STEPNET_CACHE_MB    its size limit in megabytes
"""

import os
import re
import sys
from collections.abc import Mapping

from stepnet.compiler.values.records import dataclass

OFF = ("0", "off", "no", "false")
ON = ("", "1", "on", "yes", "true")
MOST_MB = 256
USUAL = {"darwin": ("", "Library/Caches"), "win32": ("LOCALAPPDATA", "AppData/Local")}
OTHERWISE = ("XDG_CACHE_HOME", ".cache")
"""The system's folder for the user's caches: the variable that names it, and its place in the home folder; by
system, and on all others.
"""
SHOWN = 40
"""The most characters of a value in a message."""


@dataclass(frozen=True)
class Settings:
    """Settings of the cache on disk.

    folder: its folder; None if there is no cache.
    most: the most bytes that it may take.
    reason: why there is no cache; None if there is one.
    """

    folder: str | None
    most: int
    reason: str | None = None

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> "Settings":
        """Reads the settings of the disk cache from environment variables. Wrong values turn the cache off,
        with a reason.

        >>> Settings.of({"STEPNET_CACHE": "0"}).reason
        'STEPNET_CACHE is 0'
        >>> Settings.of({"STEPNET_CACHE_DIR": "/data/cache", "STEPNET_CACHE_MB": "64"}).most
        67108864
        """
        names = "STEPNET_CACHE", "STEPNET_CACHE_DIR", "STEPNET_CACHE_MB"
        used, folder, most = (variables.get(name, "").strip() for name in names)
        is_number = most != "" and re.fullmatch("0*[1-9][0-9]{0,8}", most) is not None
        megabytes = int(most) if is_number else MOST_MB
        chosen = os.path.normpath(folder) if folder else usual_folder(variables)
        reason = None
        if used.lower() in OFF:
            reason = f"STEPNET_CACHE is {used}"
        elif used.lower() not in ON:
            reason = f"STEPNET_CACHE is {used!r}; it is 0 or 1"
        elif folder and not os.path.isabs(folder):
            reason = f"STEPNET_CACHE_DIR is {folder!r}; it is an absolute path"
        elif most and not is_number:
            reason = f"STEPNET_CACHE_MB is {most[:SHOWN]!r}; it is a whole number from 1 to 999999999"
        elif not os.path.isabs(chosen):
            reason = "no home folder is known, by HOME or otherwise; STEPNET_CACHE_DIR names a folder"
        if reason is not None and used.lower() in OFF:
            return cls(None, megabytes * 2**20, reason)
        return cls(chosen, megabytes * 2**20, reason)


def usual_folder(variables: Mapping[str, str]) -> str:
    """Returns stepnet's folder in the system's folder for the user's caches. variables: the environment.

    If the home folder is unknown, the result is a relative path, which is not used. No library is used for
    this: to import one takes longer than to read compiled code.

    >>> os.path.basename(usual_folder({"XDG_CACHE_HOME": "/data/caches"}))
    'stepnet'
    """
    variable, inside = USUAL.get(sys.platform, OTHERWISE)
    named = variables.get(variable, "")
    if variable and os.path.isabs(named):
        return os.path.join(named, "stepnet")
    return os.path.join(os.path.expanduser("~"), *inside.split("/"), "stepnet")


def settings() -> Settings:
    """Reads the settings of the disk cache from the environment variables of this process."""
    return Settings.of(os.environ)
