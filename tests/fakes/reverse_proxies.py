"""Real reverse proxies that show a hub below a path, or at a host name: they run the files of deploy/nginx and
deploy/caddy, with this hub's address and a port of their own put in."""

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.ports import free_port
from fakes.waiting import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
HOST = "gpus.example"
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
  {inside}
}}
"""
NGINX_PATH = "server {{ listen 127.0.0.1:{port}; include {file}; }}"
CADDY = """
{{
  admin off
  auto_https off
  grace_period 1s
  default_bind 127.0.0.1
  storage file_system {folder}/caddy
}}
{inside}
"""
CADDY_PATH = "http://:{port} {{\n  import {file}\n}}"


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
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _program(name: str, package: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/bin")
    if found is None:
        pytest.skip(f"no {name} here (Debian, Ubuntu: apt install {package})")
    return found


def _fill_in(kind: str, name: str, folder: Path, changes: dict[str, str]) -> Path:
    """A file of deploy/ with these changes, each of which has something to change. Nothing else is touched."""
    text = (DEPLOY / kind / name).read_text()
    for before, after in changes.items():
        assert before in text, f"{name} no longer has {before!r}"
        text = text.replace(before, after)
    file = folder / name
    file.write_text(text)
    return file


@contextlib.contextmanager
def _nginx(folder: Path, inside: str, port: int) -> Iterator[str]:
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, inside=inside))
    with _running(folder, [_program("nginx", "nginx-light"), "-c", str(config), "-p", str(folder)], port) as url:
        yield url


@contextlib.contextmanager
def _caddy(folder: Path, inside: str, port: int) -> Iterator[str]:
    config = folder / "Caddyfile"
    config.write_text(CADDY.format(folder=folder, inside=inside))
    command = [_program("caddy", "caddy"), "run", "--config", str(config), "--adapter", "caddyfile"]
    with _running(folder, command, port) as url:
        yield url


@contextlib.contextmanager
def caddy_with(folder: Path, block: str) -> Iterator[str]:
    """The address of a site that has this block alone."""
    port = free_port()
    with _caddy(folder, f"http://:{port} {{\n{block}\n}}", port) as url:
        yield url


@contextlib.contextmanager
def nginx_with(folder: Path, block: str) -> Iterator[str]:
    """The address of a server that has this block alone."""
    port = free_port()
    with _nginx(folder, f"server {{ listen 127.0.0.1:{port}; {block} }}", port) as url:
        yield url


@contextlib.contextmanager
def nginx(folder: Path, hub: str) -> Iterator[str]:
    """The address of the hub's page below /gpus."""
    file, port = _fill_in("nginx", "gpudeck-path.conf", folder, {"http://127.0.0.1:8042": hub}), free_port()
    with _nginx(folder, NGINX_PATH.format(port=port, file=file), port) as url:
        yield f"{url}/gpus"


@contextlib.contextmanager
def caddy(folder: Path, hub: str) -> Iterator[str]:
    """The address of the hub's page below /gpus."""
    changes = {"127.0.0.1:8042": hub.removeprefix("http://")}
    file, port = _fill_in("caddy", "gpudeck-path.caddy", folder, changes), free_port()
    with _caddy(folder, CADDY_PATH.format(port=port, file=file), port) as url:
        yield f"{url}/gpus"


@contextlib.contextmanager
def nginx_at_a_host_name(folder: Path, hub: str) -> Iterator[str]:
    """The address of the proxy, which shows the hub to whoever asks it for HOST."""
    port = free_port()
    listen = {"listen 80;": f"listen 127.0.0.1:{port};", "listen [::]:80;": f"listen [::1]:{port};"}
    file = _fill_in("nginx", "gpudeck-host.conf", folder, {"http://127.0.0.1:8042": hub, **listen})
    with _nginx(folder, f"include {file};", port) as url:
        yield url


@contextlib.contextmanager
def caddy_at_a_host_name(folder: Path, hub: str) -> Iterator[str]:
    """The address of the proxy, which shows the hub to whoever asks it for HOST."""
    port = free_port()
    changes = {"127.0.0.1:8042": hub.removeprefix("http://"), f"{HOST} {{": f"http://{HOST}:{port} {{"}
    file = _fill_in("caddy", "gpudeck-host.caddy", folder, changes)
    with _caddy(folder, f"import {file}", port) as url:
        yield url


Proxy = Callable[[Path, str], contextlib.AbstractContextManager[str]]
PROXIES: tuple[Proxy, ...] = (nginx, caddy)
AT_A_HOST_NAME: tuple[Proxy, ...] = (nginx_at_a_host_name, caddy_at_a_host_name)
