"""HTTP to a hub, for agents and the command line: direct or through a proxy, with verified certificates and clear
errors. The hub's own requests to others use `fetch`."""

import contextlib
import ipaddress
import os
import ssl
from pathlib import Path
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.util import make_headers

from gpudeck.model.address import check_proxy
from gpudeck.model.errors import UsageError
from gpudeck.model.settings import is_loopback

TRANSPORT_ERRORS = (urllib3.exceptions.HTTPError, OSError, UnicodeError)
"""The exceptions of a failed request: no answer, or an answer that is not HTTP."""
TIMEOUT = urllib3.Timeout(connect=5.0, read=15.0)


def open_pool(
    hub: str, ca_file: str | None = None, proxy: str = "none", *, connections: int = 1
) -> urllib3.PoolManager:
    """A pool of connections to a hub; connects to nothing yet. `proxy` as in AgentSettings. Raises UsageError. With a
    `ca_file`, only certificates signed by those in it are trusted, else those of this machine."""
    context = _trust(ca_file) if ca_file is not None else None
    through = find_proxy(hub, proxy)
    if through is None:
        return urllib3.PoolManager(maxsize=connections, retries=False, timeout=TIMEOUT, ssl_context=context)
    address, headers = _split_login(through)
    return urllib3.ProxyManager(
        address,
        proxy_headers=headers,
        proxy_ssl_context=context,
        maxsize=connections,
        retries=False,
        timeout=TIMEOUT,
        ssl_context=context,
    )


def send_request(
    pool: urllib3.PoolManager,
    method: str,
    url: str,
    headers: dict[str, str],
    timeout: float,
    *,
    body: bytes | None = None,
    is_stream: bool = False,
) -> urllib3.BaseHTTPResponse:
    """Send one request to a hub; returns its answer, decompressed. Redirects are not followed. `timeout` is for each
    step, in seconds. A stream is read and closed by the caller. Raises one of TRANSPORT_ERRORS."""
    # On one machine sending costs less than compressing.
    packed = {} if is_loopback(urlsplit(url).hostname or "") else {"Accept-Encoding": "gzip"}
    return pool.request(
        method,
        url,
        body=body,
        headers=headers | packed,
        redirect=False,
        timeout=timeout,
        preload_content=not is_stream,
    )


def find_proxy(hub: str, proxy: str) -> str | None:
    """The proxy's URL, which may contain a password; None for a direct connection. Raises UsageError."""
    if proxy == "none":
        return None
    found = _of_environment(hub) if proxy == "environment" else proxy
    return None if found is None else check_proxy(found)


def _of_environment(hub: str) -> str | None:
    """From HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, as other programs read them; never for this machine
    itself."""
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - takes 20 ms

    parts = urlsplit(hub)
    host, proxies = parts.hostname or "", getproxies()
    found = proxies.get(parts.scheme) or proxies.get("all")
    if not found or host == "localhost" or proxy_bypass(host) or _is_left_out(host):
        return None
    return found


def _is_left_out(host: str) -> bool:
    """Whether an address is on this machine, or in a network of NO_PROXY (10.0.0.0/8)."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for network in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").split(","):
        with contextlib.suppress(ValueError):
            if "/" in network and address in ipaddress.ip_network(network.strip(), strict=False):
                return True
    return address.is_loopback


def _split_login(proxy: str) -> tuple[str, dict[str, str]]:
    """The URL without name and password, and the header with them."""
    parts = urlsplit(proxy)
    if parts.username is None:
        return proxy, {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return address, dict(make_headers(proxy_basic_auth=login))


def _trust(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(Path(ca_file).expanduser()))
    except (OSError, RuntimeError) as error:
        # An ssl.SSLError is an OSError with OpenSSL's text: the file contains no certificate.
        reason = "it holds no certificate" if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
        raise UsageError(
            f"the certificates in {ca_file} cannot be read: {(reason or str(error)).lower()}.",
            "Give the authority's certificate as a PEM file.",
        ) from error


def is_tls_failure(error: BaseException | None) -> bool:
    """Whether TLS failed, usually because the certificate is not trusted."""
    return isinstance(error, urllib3.exceptions.SSLError | ssl.SSLError)


def find_certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Why the certificate is not trusted; None for other errors."""
    errors = () if error is None else (error, *error.args)
    return next((one for one in errors if isinstance(one, ssl.SSLCertVerificationError)), None)


def explain(error: Exception) -> str:
    """The innermost reason and, if there is a remedy, the next step."""
    is_proxy = False
    while True:
        is_proxy = is_proxy or isinstance(error, urllib3.exceptions.ProxyError)
        inner = error.__cause__ or (error.args[-1] if error.args and _wraps(error) else None)
        if not isinstance(inner, Exception):
            break
        error = inner
    if isinstance(error, ssl.SSLCertVerificationError):
        trusted = "set --ca-file or agent.ca_file to the certificate of your CA"
        return f"its certificate is not trusted ({error.verify_message.rstrip('.')}); if it should be, {trusted}"
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "it does not accept TLS; if it has none, its address begins with http://"
    said = getattr(error, "strerror", None) or str(error).rpartition(": ")[2] or type(error).__name__
    if said.startswith("407"):
        return PROXY_WANTS_LOGIN
    return f"through the proxy: {said}" if is_proxy else said


PROXY_WANTS_LOGIN = "the proxy needs a name and a password (407); set agent.proxy to http://name:password@proxy:3128"


def _wraps(error: Exception) -> bool:
    return isinstance(error, urllib3.exceptions.ProxyError | urllib3.exceptions.SSLError)
