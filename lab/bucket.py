"""A bucket of a real S3 server on this machine, behind a proxy that is as slow or unreliable as a test asks for.

    python -m lab.bucket FOLDER ...

serves the files of folders in a process of its own until its input ends. It prints the environment of its clients as
JSON, and reads round trips in seconds, one a line.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIAWARDWARDWARD",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-ward",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}

Answer = tuple[int, dict[str, str], bytes]


class Bucket:
    """A bucket, and the proxy before it.

    Attributes:
        address: `s3://NAME`.
        endpoint: address of the proxy, for `AWS_ENDPOINT_URL`.
        requests: method and path of each request since `requests.clear()`.
        fault: changes an answer: is called with the path, the headers of the request and the answer; may wait, and
            returns None to cut the connection in the middle of the body.
        refuse: whether a request, by method and path, is answered with 503 and not passed on.
        round_trip_s: added to each request.
    """

    def __init__(self, client: Any, name: str, endpoint: str) -> None:
        self.client, self.name, self.endpoint, self.address = client, name, endpoint, f"s3://{name}"
        self.requests: list[str] = []
        self.fault: Callable[[str, Any, Answer], Answer | None] | None = None
        self.refuse: Callable[[str, str], bool] | None = None
        self.round_trip_s = 0.0

    def put(self, key: str, content: bytes, **options: str) -> None:
        """Store an object."""
        self.client.put_object(Bucket=self.name, Key=key, Body=content, **options)

    def put_folder(self, folder: Path, prefix: str, **options: str) -> str:
        """Store the files of a folder and return the address."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes(), **options)
        return f"{self.address}/{prefix}"


@contextmanager
def served_bucket(name: str = "ward") -> Iterator[Bucket]:
    """Serve a new bucket; the environment has its address and credentials in the block."""
    import boto3
    from moto.server import ThreadedMotoServer
    from werkzeug.serving import WSGIRequestHandler

    WSGIRequestHandler.log_request = lambda *_: None  # type: ignore[method-assign]
    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
    client.create_bucket(Bucket=name)
    proxy = _Proxy(("127.0.0.1", 0), _Handler)
    bucket = Bucket(client, name, f"http://127.0.0.1:{proxy.server_address[1]}")
    proxy.bucket, proxy.behind = bucket, (host, port)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    os.environ["AWS_ENDPOINT_URL"] = bucket.endpoint
    try:
        yield bucket
    finally:
        os.environ.clear()
        os.environ.update(before)
        proxy.shutdown()
        proxy.server_close()
        server.stop()


class _Proxy(ThreadingHTTPServer):
    bucket: Bucket
    behind: tuple[str, int]
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Print nothing about clients that give up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        assert isinstance(self.server, _Proxy)
        bucket = self.server.bucket
        bucket.requests.append(f"{self.command} {self.path}")
        time.sleep(bucket.round_trip_s)
        if bucket.refuse is not None and bucket.refuse(self.command, self.path):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if not hasattr(self, "behind"):
            self.behind = http.client.HTTPConnection(*self.server.behind)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.behind.request(self.command, self.path, body or None, headers=dict(self.headers))
        reply = self.behind.getresponse()
        content = reply.read()
        headers = {name: value for name, value in reply.getheaders() if name.lower() not in ("connection", "date")}
        answer: Answer | None = (reply.status, headers, content)
        if self.command in ("GET", "HEAD") and bucket.fault is not None:
            answer = bucket.fault(self.path, self.headers, (reply.status, headers, content))
        if answer is None:
            self.send_response(reply.status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        status, headers, content = answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def main() -> None:
    """Serve folders; see the module."""
    with served_bucket() as bucket:
        for folder in map(Path, sys.argv[1:]):
            bucket.put_folder(folder, folder.name)
        print(json.dumps(ENVIRONMENT | {"AWS_ENDPOINT_URL": bucket.endpoint}), flush=True)
        for line in sys.stdin:
            bucket.round_trip_s = float(line)
            print(line.strip(), flush=True)


if __name__ == "__main__":
    main()
