"""A hub process whose users log in through a provider."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fakes.hubs import HubProcess, running_hub
from fakes.oidc_providers import CLIENT, SECRET
from fakes.ports import free_port

MAPPING = """
        roles: {admin: [gpu-admins], user: [staff]}
        default_role: viewer
        groups: {"lab-*": "*"}
"""


def entry(name: str, issuer: str, secret_file: Path, mapping: str = MAPPING) -> str:
    """One provider for `login.oidc`."""
    secret_file.write_text(SECRET)
    return f"""
    - name: {name}
      label: {name.capitalize()} account
      issuer: {issuer}
      client_id: {CLIENT}
      client_secret_file: {secret_file}
      scopes: [openid, profile, email, groups]
      mapping:{mapping}"""


class HubPlace:
    """Where a hub will listen, so that providers can be told before it starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listen = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.listen}"

    @contextlib.contextmanager
    def running(self, *providers: str, more: str = "", public_url: str | None = None) -> Iterator[HubProcess]:
        head = f"listen: {self.listen}\nread: login\nlocal: never\npublic_url: {public_url or self.url}\n{more}"
        config = f"{head}\nlogin:\n  oidc:{''.join(providers)}\n"
        (self.folder / "gpudeck.yaml").write_text(config)
        with running_hub(self.folder, "--demo", "1", "--listen", self.listen) as hub:
            yield hub
