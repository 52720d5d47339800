"""A real HTTP server in the hub's place, which answers as it is told to and keeps what it gets."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class MoodyHub:
    """Answers each POST with the next of its moods, 202 when it has none left; keeps what it took.

    `takes_late` says that it takes late reports, `version` which version of reports it reads, if it says so; `code`,
    `message` and `hint` are those of its errors. `bodies` are all that it got.
    """

    def __init__(self, port: int = 0) -> None:
        self.moods: list[int] = []
        self.takes_late = True
        self.version: str | None = None
        self.code = self.message = self.hint = ""
        self.taken: list[bytes] = []
        self.bodies: list[bytes] = []
        self.seen: list[tuple[str | None, str | None]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hub.seen.append((self.headers["Authorization"], self.headers["Gpudeck-Sent-At"]))
                hub.bodies.append(body)
                status = hub.moods.pop(0) if hub.moods else 202
                hub.taken += [body] if status == 202 else []
                self.send_response(status)
                answer = json.dumps({"error": {"code": hub.code, "message": hub.message, "hint": hub.hint}}).encode()
                self.send_header("Content-Length", str(len(answer)))
                self.send_header("Retry-After", "0")
                if hub.takes_late and status == 202:
                    self.send_header("Gpudeck-Late-Reports", "1")
                if hub.version is not None and status == 202:
                    self.send_header("Gpudeck-Wire-Version", hub.version)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
