"""Who may open a folder on Windows: what its access list says, as text."""

import pytest

from stepnet.compiler.disk.access import refusal

ME, OTHER = "S-1-5-21-7-1001", "S-1-5-21-7-1002"
SYSTEM = "(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)"
UNREADABLE = "has no access list that can be read; choose a folder in your profile"


@pytest.mark.parametrize(
    "text",
    [
        f"O:{ME}D:PAI{SYSTEM}(A;OICI;FA;;;{ME})",
        f"O:{ME}G:S-1-5-21-7-513D:{SYSTEM}(A;OICIID;FA;;;{ME})(A;OICIIO;GA;;;CO)(A;;FA;;;OW)",
        f"O:BAG:SYD:{SYSTEM}(A;OICI;FA;;;{ME})",
        f"O:{ME}D:(D;;FA;;;{OTHER}){SYSTEM}(A;;FA;;;{ME})",
        f"O:{ME}D:{SYSTEM}(A;;FA;;;{ME})(A;OICI;0x1200a9;;;AC)(A;;FA;;;S-1-15-2-2)(A;;FR;;;S-1-15-3-65536-1-2)",
    ],
)
def test_a_folder_of_the_user_and_the_system_is_private(text: str) -> None:
    assert refusal(text, ME) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"O:{OTHER}D:{SYSTEM}", f"belongs to user {OTHER}, not to {ME}"),
        (f"O:{ME}D:{SYSTEM}(A;;FA;;;WD)", "is open to others (WD); choose a folder in your profile"),
        (f"O:{ME}D:(A;;0x1200a9;;;{OTHER})", f"is open to others ({OTHER}); choose a folder in your profile"),
        (f"O:{ME}D:(A;;FR;;;BU)(A;;FR;;;AU)", "is open to others (AU, BU); choose a folder in your profile"),
        (
            f"O:{ME}D:(A;;FR;;;S-1-15-21-7)",
            "is open to others (S-1-15-21-7); choose a folder in your profile",
        ),
        (f"O:{ME}D:NO_ACCESS_CONTROL", UNREADABLE),
        (f"O:{ME}", UNREADABLE),
        (f'O:{ME}D:{SYSTEM}(XA;;FA;;;WD;(@User.Title=="PM"))', UNREADABLE),
        ("", UNREADABLE),
    ],
)
def test_a_folder_that_others_may_open_is_refused(text: str, reason: str) -> None:
    assert refusal(text, ME) == reason


def test_the_local_administrator_has_a_short_name() -> None:
    text = f"O:LAD:{SYSTEM}(A;;FA;;;LA)"
    assert refusal(text, "S-1-5-21-7-500") is None
    assert refusal(text, ME) == f"belongs to user LA, not to {ME}"
