"""What is made from the code and kept in the repository: the page's view of the API, the reference of the settings,
Prometheus' rules and Grafana's dashboard.

`python -m tests.generated` (or `make generated`) writes them; a test says when one is out of date.
"""

import json
from pathlib import Path

import msgspec

from docs.references import commands_page, metrics_page, routes_page
from docs.settings_reference import reference
from generated_dashboard import dashboard
from generated_rules import alert_rules, dcgm_rules, recording_rules
from gpudeck.api.app import read_routes
from gpudeck.api.schema import complete_schema
from gpudeck.model.catalog import CATALOG
from gpudeck.settings import Settings

ROOT = Path(__file__).parent.parent


def api_document() -> str:
    document = complete_schema(read_routes())
    # The version is the package's, not the interface's: a release must not change the page's types.
    document["info"]["version"] = "1"
    return msgspec.json.encode(document, order="sorted").decode() + "\n"


def page_catalog() -> str:
    """What the page has to know of a metric to show one that it was not written for."""
    rows = [{"name": m.name, "scope": m.scope.value, "unit": m.unit, "label": m.label, "live": m.live} for m in CATALOG]
    return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]\n"


def settings_reference() -> str:
    return reference(Settings)


def api_routes() -> str:
    return routes_page(json.loads(api_document()))


GENERATED = {
    "web/src/api/openapi.json": api_document,
    "web/src/api/catalog.json": page_catalog,
    "docs/configuration.md": settings_reference,
    "docs/commands.md": commands_page,
    "docs/metrics.md": metrics_page,
    "docs/routes.md": api_routes,
    "deploy/prometheus/gpudeck.rules.yml": recording_rules,
    "deploy/prometheus/gpudeck.alerts.yml": alert_rules,
    "deploy/prometheus/gpudeck.dcgm.yml": dcgm_rules,
    "deploy/grafana/gpudeck.json": dashboard,
}


def main() -> None:
    for name, make in GENERATED.items():
        (ROOT / name).write_text(make())
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
