"""What nvidia-smi complains about, and which kind of failure it is."""

from gpudeck.collectors.smi_answer import Answer, quote, read_whole
from gpudeck.collectors.smi_command import LATE_CODES, NO_PROGRAM, SECONDS
from gpudeck.collectors.smi_gpus import Listed
from gpudeck.model.errors import Absent, PluginError, Refused, Temporary

_COMPLAINTS_AT_MOST = 8
_LOOK = "Look at the kernel log (dmesg)."


def explain_failure(answer: Answer, listed: Listed, before: int) -> PluginError:
    """Why no GPU is in the answer. `before` is how many there were in the last one that had any."""
    code = read_whole(answer.first("gpus-code"), 255)
    said = " ".join(listed.complaints[:2])
    if code in LATE_CODES:
        limit = read_whole(answer.first("limit"), 3600) or SECONDS
        return Temporary(f"nvidia-smi did not answer within {limit} s: the driver hangs.", _LOOK)
    if code == NO_PROGRAM or "No devices were found" in said:
        message = "There is no nvidia-smi on this machine." if code == NO_PROGRAM else "nvidia-smi finds no GPU."
        return Temporary(f"{message} There were {before} before.", _LOOK) if before else Absent(message)
    if "Insufficient Permissions" in said:
        return Refused(f"nvidia-smi may not be used: {said}.", "Look at the permissions of /dev/nvidia*.")
    if "Driver/library version mismatch" in said:
        hint = "The driver was updated: reload the kernel module or restart the machine."
        return Temporary("The NVIDIA library and the loaded kernel module are of different versions.", hint)
    return Temporary(f"nvidia-smi lists no GPU (exit code {code}): {said or 'it said nothing'}")


def find_problems(answer: Answer, listed: Listed) -> list[str]:
    """What nvidia-smi complained about while it listed other GPUs."""
    code = answer.first("gpus-code")
    heading = "nvidia-smi" if code == "0" else f"nvidia-smi (exit code {quote(code)})"
    return [f"{heading}: {complaint}" for complaint in listed.complaints[:_COMPLAINTS_AT_MOST]]
