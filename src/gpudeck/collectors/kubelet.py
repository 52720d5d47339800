"""The kubelet's PodResources API: which devices the containers of this node have. `h2` speaks HTTP/2; the five messages
of the answer are decoded here: grpcio would take 22 MiB of memory, where this takes 5 (docs/decisions.md)."""

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

from msgspec import Struct

from gpudeck.collectors.redaction import clean
from gpudeck.model.errors import Refused, Temporary

MAX_SECONDS = 5.0
MAX_BYTES = 16 * 2**20
"""The kubelet's own limit."""
_LIST = "/v1.PodResourcesLister/List"
_WORD_LENGTH = 256
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BITS = 70
_MESSAGE_HEAD = 5


class DynamicDevice(NamedTuple):
    """A device of a resource claim (DRA), by its name in its driver's pool."""

    driver: str
    pool: str
    device: str


class ContainerDevices(Struct, frozen=True):
    """A container and its devices. `devices` are pairs of a resource (`nvidia.com/gpu`) and a device id."""

    namespace: str
    pod: str
    container: str
    devices: tuple[tuple[str, str], ...] = ()
    claimed: tuple[DynamicDevice, ...] = ()


def list_containers(path: str, seconds: float = MAX_SECONDS) -> list[ContainerDevices]:
    """The containers of all pods of this node. Raises Temporary, or Refused where the socket may not be opened."""
    try:
        return read_list(_call(path, _LIST, time.monotonic() + seconds))
    except PermissionError as error:
        raise Refused(f"{path}: permission denied.", "Run the agent as root: the socket belongs to root.") from error
    except TimeoutError as error:
        raise Temporary(f"{path} did not answer within {seconds:g} s.") from error
    except OSError as error:
        raise Temporary(f"{path}: {(error.strerror or str(error)).lower()}.") from error
    except ValueError as error:
        raise Temporary(f"{path} gave an answer that is not understood: {error}.") from error


def _call(path: str, method: str, ends_at: float) -> bytes:
    """The message that answers an empty one. Raises OSError, ValueError, Temporary."""
    from h2 import events  # noqa: PLC0415 - only where there is a kubelet
    from h2.config import H2Configuration  # noqa: PLC0415
    from h2.connection import H2Connection  # noqa: PLC0415
    from h2.exceptions import ProtocolError  # noqa: PLC0415
    from h2.settings import SettingCodes  # noqa: PLC0415

    http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    headers: dict[str, str] = {}
    body, is_complete = bytearray(), False
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        try:
            connection.settimeout(_remaining(ends_at))
            connection.connect(path)
            http.initiate_connection()
            http.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: MAX_BYTES})
            http.increment_flow_control_window(MAX_BYTES)
            stream = http.get_next_available_stream_id()
            http.send_headers(
                stream,
                [
                    (":method", "POST"),
                    (":scheme", "http"),
                    (":path", method),
                    (":authority", "localhost"),
                    ("te", "trailers"),
                    ("content-type", "application/grpc"),
                ],
            )
            http.send_data(stream, bytes(_MESSAGE_HEAD), end_stream=True)
            while not is_complete:
                connection.settimeout(_remaining(ends_at))
                connection.sendall(http.data_to_send())
                received = connection.recv(65536)
                if not received:
                    raise ValueError("the connection was closed too early")
                for event in http.receive_data(received):
                    if isinstance(event, events.ResponseReceived | events.TrailersReceived):
                        headers |= {str(name): str(value) for name, value in event.headers}
                    elif isinstance(event, events.DataReceived):
                        body += event.data
                    elif isinstance(event, events.StreamReset | events.ConnectionTerminated):
                        raise ValueError("the call was refused")  # noqa: TRY004 - the kind of event is the value
                    is_complete = is_complete or isinstance(event, events.StreamEnded)
                if len(body) > MAX_BYTES:
                    raise ValueError(f"it is larger than {MAX_BYTES // 2**20} MiB")
        except ProtocolError as error:
            raise ValueError(f"not HTTP/2: {str(error) or type(error).__name__}") from error
    return _read_message(headers, bytes(body))


def _remaining(ends_at: float) -> float:
    seconds = ends_at - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _read_message(headers: dict[str, str], body: bytes) -> bytes:
    """The message of a gRPC response. Raises Temporary, ValueError."""
    status = headers.get("grpc-status")
    if status != "0":
        detail = clean(unquote(headers.get("grpc-message", "")))[:200].rstrip(".")
        raise Temporary(f"the call failed (HTTP {headers.get(':status')}, gRPC {status}): {detail}.")
    if len(body) < _MESSAGE_HEAD or body[0] != 0:
        raise ValueError("not one plain message")
    if int.from_bytes(body[1:_MESSAGE_HEAD], "big") != len(body) - _MESSAGE_HEAD:
        raise ValueError("the message is cut off")
    return body[_MESSAGE_HEAD:]


def read_list(message: bytes) -> list[ContainerDevices]:
    """A ListPodResourcesResponse, with the published field numbers. Raises ValueError."""
    return [container for pod in _split(message).get(1, ()) for container in _read_pod(_split(pod))]


_Fields = dict[int, list[bytes]]


def _read_pod(fields: _Fields) -> Iterator[ContainerDevices]:
    name, namespace = _word(fields, 1), _word(fields, 2)
    for container in map(_split, fields.get(3, ())):
        devices = [
            (_word(given, 1), _show(device))
            for given in map(_split, container.get(2, ()))
            for device in given.get(2, ())
        ]
        claims = (device for claim in container.get(5, ()) for device in _split(claim).get(4, ()))
        claimed = [DynamicDevice(_word(one, 2), _word(one, 3), _word(one, 4)) for one in map(_split, claims)]
        yield ContainerDevices(namespace, name, _word(container, 1), tuple(devices), tuple(claimed))


def _word(fields: _Fields, number: int) -> str:
    return _show(fields.get(number, [b""])[-1])


def _show(value: bytes) -> str:
    return clean(value.decode(errors="replace"))[:_WORD_LENGTH]


def _split(message: bytes) -> _Fields:
    """The fields of a message that have a length, texts and messages, by their numbers. Raises ValueError."""
    fields: _Fields = {}
    at, end = 0, len(message)
    while at < end:
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if kind == _BYTES:
            length, at = _read_varint(message, at)
            if length > end - at:
                raise ValueError("a field is longer than its message")
            fields.setdefault(tag >> 3, []).append(message[at : at + length])
            at += length
        elif kind == _VARINT:
            _, at = _read_varint(message, at)
        elif kind in {_FIXED32, _FIXED64}:
            at += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"a field of kind {kind}")
    if at > end:
        raise ValueError("the last field is cut off")
    return fields


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _MAX_VARINT_BITS and at < len(message):
        byte = message[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:  # without the bit that says that more follow
            return value, at
        shift += 7
    raise ValueError("a number is cut off")
