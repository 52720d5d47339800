"""What the help overlay says. It fits a terminal of 80 columns and 24 lines."""

_HELP = """\
Keys, as in htop and nvitop where they have them

up down pgup pgdn home end  move      P  sort by utilization
enter    open the row or the group    M  by memory
esc      back; drop the filter        T  by time
f or 1   fleet                        N  by host
p or 2   processes                    U  by user
u or 3   people                       < >  by the column beside
/        filter by words              I  turn the order around
s        search, n goes on            g  group: host, model, user, none
space    stand still, go on           k  end a process of your own
q        quit                            on this machine

Words of filter and search, as on the page:
free busy held booked unknown  h200  gpu07  -alice  user:ann  >40G  critical
"""


def help_lines() -> list[str]:
    return _HELP.splitlines()
