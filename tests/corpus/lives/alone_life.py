"""One process without a framework that lives and waits: an idle server, a notebook's kernel, a service."""

import asyncio
import sys
import threading
import time
from http.server import HTTPServer, SimpleHTTPRequestHandler


async def idle_asyncio() -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    print("ready", flush=True)
    await server.serve_forever()


def main(mine: str) -> None:
    if mine == "asyncio":
        asyncio.run(idle_asyncio())
    if mine == "http":
        server = HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
        print("ready", flush=True)
        server.serve_forever()
    print("ready", flush=True)
    if mine == "event":
        threading.Event().wait()
    if mine == "poll":
        while True:
            time.sleep(5)
    if mine == "code":
        import code

        code.interact()


main(sys.argv[1])
