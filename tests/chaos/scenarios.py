"""All scenarios by name, in the order in which they run. Each gets a folder, a seed, whether it is to be short, and how
often to kill, and returns what it measured."""

from collections.abc import Callable
from typing import Final

from chaos import backups, balanced, clocks, clusters, damage, disks, engines, kills, loop, outages
from chaos.figures import Outcome

SCENARIOS: Final[dict[str, Callable[..., Outcome]]] = {
    "kills": kills.run,
    "full_disk": disks.run,
    "clock_start": clocks.at_start,
    "clock_running": clocks.while_running,
    "damage": damage.run,
    "postgresql": engines.postgresql,
    "victoria_metrics": engines.victoria_metrics,
    "backlog": outages.backlog,
    "mass_outage": outages.mass_outage,
    "large_pages": loop.run,
    "backups": backups.run,
    "cluster": clusters.run,
    "load_balancer": balanced.run,
}
