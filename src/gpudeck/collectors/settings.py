"""What an operator decides about the reading of a machine."""

from msgspec import Struct, field

from gpudeck.collectors.redaction import Commands

DISPLAY_SERVERS = (
    *("X", "Xorg", "Xvnc", "Xwayland"),
    *("cinnamon", "compiz", "cosmic-comp", "gnome-shell", "Hyprland", "kwin_wayland", "kwin_x11", "labwc"),
    *("marco", "muffin", "mutter", "niri", "plasmashell", "sway", "weston", "xfwm4"),
    *("lightdm-gtk-greeter", "sddm-greeter"),
)
"""Programs that draw the desktop. With graphics alone on a GPU they do not make it busy."""


class CollectorSettings(Struct, frozen=True, omit_defaults=True):
    """What is told of processes, and what is worth its price."""

    commands: Commands = "redacted"
    """How much of a process's command line leaves this machine: full, redacted (secrets hidden), its name, or none."""
    display_servers: list[str] = field(default_factory=lambda: list(DISPLAY_SERVERS))
    """Programs that draw the desktop: with graphics alone on a GPU they do not make it busy."""
    pcie_throughput: bool = False
    """Whether the PCIe traffic of NVIDIA GPUs is read: it takes 40 ms a GPU, every ten seconds."""
