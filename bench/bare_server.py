"""The least that can take a POST on the same server software: reads the body, answers 202, knows nothing."""

import sys
from typing import Any

import uvicorn

BODY = b'{"status":"taken"}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]


async def app(_: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 202, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), lifespan="off", ws="none", log_level="error", server_header=False)
