"""What NVIDIA's XID codes mean to whoever looks after a GPU. Pure data: a code in, a kind and words out.

critical     the GPU is not to be trusted: somebody has to act
application  a program's own fault: for its owner, the GPU is well
warning      the hardware or its driver stumbled, or the code is not known here
"""

from typing import Literal

from msgspec import Struct

XidKind = Literal["critical", "application", "warning"]


class Xid(Struct, frozen=True):
    """One code. `text` continues the words "XID 79:", `action` is a whole sentence."""

    kind: XidKind
    text: str
    action: str


_WATCH = "Look at the kernel log (dmesg) of the host. If it comes again, reset the GPU."
_TELL = "Tell the owner of the process."
_RESET = "Take the GPU out of use and reset it. If it comes again, have the card checked."
_RESTART = (
    "Take the GPU out of use and restart the host. If it comes again, update the driver or have the card checked."
)

_CRITICAL = {
    48: ("a memory error that could not be corrected", _RESET),
    62: ("its internal controller halted", _RESET),
    64: ("a broken part of its memory could not be replaced", "Take the GPU out of use and have the card replaced."),
    74: ("an NVLink failed", "Reset the GPU. If it comes again, have its NVLink connections checked."),
    79: ("it has fallen off the bus", "Check the card's power, seat and cooling, then power the host off and on."),
    95: ("a memory error that may have reached other programs", "Stop all work on it, then reset the GPU."),
    119: ("its firmware (GSP) does not answer", _RESTART),
    120: ("its firmware (GSP) failed", _RESTART),
}
_APPLICATION = {
    13: "a program made it execute something invalid",
    31: "a program touched memory that is not its own",
    43: "a program's work was stopped because it failed",
    45: "a program's work was removed: it was killed or had failed before",
    68: "a program made the video decoder fail",
    69: "a program gave it an invalid command",
    137: "a program touched memory of another GPU without permission",
}
_WARNING = {
    8: "it stopped working on a program and was stirred up again",
    32: "commands reached it damaged",
    38: "its driver's firmware failed",
    61: "its internal controller stopped at a fault",
    63: "a broken part of its memory is to be replaced at the next reset",
    92: "it corrects unusually many memory errors",
    94: "a memory error that stopped one program and no other",
    109: "it could not switch between programs in time",
    110: "it refused something for its own security",
    121: "its link to the CPU had errors that were corrected",
    122: "its memory for settings could not be read",
    140: "memory errors that could not be corrected",
    143: "it could not be set up",
    154: "the driver asks for a step to recover it",
}

XIDS: dict[int, Xid] = {
    **{code: Xid("critical", text, action) for code, (text, action) in _CRITICAL.items()},
    **{code: Xid("application", text, _TELL) for code, text in _APPLICATION.items()},
    **{code: Xid("warning", text, _WATCH) for code, text in _WARNING.items()},
}
"""The codes known here."""

_OTHER = Xid("warning", "a fault without a known meaning", _WATCH)


def find_xid(code: int) -> Xid:
    """What the code means; a warning where that is not known."""
    return XIDS.get(code, _OTHER)
