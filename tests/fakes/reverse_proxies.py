"""Real reverse proxies that show a hub below a path, set up as the documents of nginx and Caddy say."""

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.hubs import wait_until

NGINX = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location /gpus/ {{
      proxy_pass {hub}/;
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
    }}
  }}
}}
"""
CADDY = """
{{
  admin off
  auto_https off
  grace_period 1s
  storage file_system {folder}/caddy
}}
http://127.0.0.1:{port} {{
  bind 127.0.0.1
  handle_path /gpus/* {{
    reverse_proxy {address}
  }}
}}
"""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextlib.contextmanager
def _running(folder: Path, command: list[str], port: int) -> Iterator[str]:
    """The address of the hub's page behind what the command starts."""
    with (folder / "proxy.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env={"HOME": str(folder)})
    try:
        wait_until(lambda: _answers(port), f"{command[0]} on port {port}")
        yield f"http://127.0.0.1:{port}/gpus"
    finally:
        process.terminate()
        process.wait(10)


def _program(name: str, package: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/bin")
    if found is None:
        pytest.skip(f"no {name} here (Debian, Ubuntu: apt install {package})")
    return found


@contextlib.contextmanager
def nginx(folder: Path, hub: str) -> Iterator[str]:
    program, port = _program("nginx", "nginx-light"), _free_port()
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, hub=hub))
    with _running(folder, [program, "-c", str(config), "-p", str(folder)], port) as url:
        yield url


@contextlib.contextmanager
def caddy(folder: Path, hub: str) -> Iterator[str]:
    program, port = _program("caddy", "caddy"), _free_port()
    config = folder / "Caddyfile"
    config.write_text(CADDY.format(folder=folder, port=port, address=hub.removeprefix("http://")))
    with _running(folder, [program, "run", "--config", str(config), "--adapter", "caddyfile"], port) as url:
        yield url


Proxy = Callable[[Path, str], contextlib.AbstractContextManager[str]]
PROXIES: tuple[Proxy, ...] = (nginx, caddy)
