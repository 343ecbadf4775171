"""An API server of Kubernetes for one Node, over HTTP as documented: reads, strategic merge patches of the object and
of its status, versions and conflicts, watches, Status objects for what is refused. Faults are played on demand."""

import contextlib
import copy
import json
import queue
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Node = dict[str, Any]
STRATEGIC = "application/strategic-merge-patch+json"
_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    500: "InternalError",
}


def a_node(name: str = "gpu-7") -> Node:
    """As kubelet registers one, shortened, with what others wrote there."""
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": "2026-11-28T09:00:00Z",
        "lastTransitionTime": "2026-11-27T09:00:00Z",
    }
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": "7a4a1d31-2d5c-4f51-a2e5-3a3b7c5f6d10",
            "resourceVersion": "100",
            "creationTimestamp": "2026-11-27T08:59:00Z",
            "labels": {"kubernetes.io/hostname": name, "nvidia.com/gpu.present": "true"},
        },
        "spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]},
        "status": {"capacity": {"cpu": "96", "nvidia.com/gpu": "8"}, "conditions": [ready]},
    }


class KubeApi:
    """`node` is the object; `asked` what was requested, by method and path. Use `running`."""

    def __init__(self, node: Node) -> None:
        self.node: Node | None = node
        self.asked: list[tuple[str, str]] = []
        self.bodies: list[Node] = []
        #: Called before each request is answered; what it returns is the answer: (status, headers), or a body with 200.
        self.fault: Callable[[str, str], tuple[int, dict[str, str]] | bytes | None] = lambda method, path: None
        #: Watches under way, and whether new ones break off in the middle of a line.
        self.watchers: list[queue.SimpleQueue[bytes | None]] = []
        self.broken_watches = False
        self.lock = threading.RLock()

    def change(self, change: Callable[[Node], None]) -> None:
        """Somebody else changes the object."""
        with self.lock:
            assert self.node is not None
            node = copy.deepcopy(self.node)
            change(node)
            self._put(node)

    def _put(self, node: Node) -> None:
        node["metadata"]["resourceVersion"] = str(int(node["metadata"]["resourceVersion"]) + 1)
        self.node = node
        line = json.dumps({"type": "MODIFIED", "object": node}).encode() + b"\n"
        for watcher in self.watchers:
            watcher.put(line)

    def end_watches(self) -> None:
        """As a server that restarts."""
        with self.lock:
            for watcher in self.watchers:
                watcher.put(None)

    def patched(self, patch: Node, status: bool) -> tuple[int, Node]:
        """What the server answers to a patch."""
        with self.lock:
            if self.node is None:
                return 404, _refusal(404, "nodes not found")
            version = patch.get("metadata", {}).get("resourceVersion")
            if version is not None and version != self.node["metadata"]["resourceVersion"]:
                return 409, _refusal(
                    409, "the object has been modified; please apply your changes to the latest version"
                )
            node = copy.deepcopy(self.node)
            # A patch of the object changes no status, and one of the status nothing else.
            part = {"status": patch.get("status", {})} if status else {k: v for k, v in patch.items() if k != "status"}
            part.get("metadata", {}).pop("resourceVersion", None)
            merge(node, part)
            self._put(node)
            return 200, node

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    port = 0

    def kubeconfig(self, folder: Path) -> Path:
        """A file that leads here."""
        cluster = {"name": "fake", "cluster": {"server": self.url}}
        user = {"name": "muster", "user": {"token": "t"}}
        context = {"name": "fake", "context": {"cluster": "fake", "user": "muster"}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "fake"}
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config | {"clusters": [cluster], "users": [user], "contexts": [context]}))
        return path

    # --- what a test asks of it ---------------------------------------------------------------------------------------

    def condition(self, type: str = "MusterNodeProblem") -> Node:
        """Of the object; empty where it has none."""
        assert self.node is not None
        return next((c for c in self.node["status"]["conditions"] if c["type"] == type), {})

    def taints(self) -> list[str]:
        """key=value:effect."""
        assert self.node is not None
        taints = self.node["spec"].get("taints") or []
        return [f"{t['key']}={t.get('value', '')}:{t['effect']}" for t in taints]


def merge(into: Node, patch: Node) -> None:
    """Strategic merge, as far as a Node needs it: null removes, conditions are merged by their type, other lists are
    replaced (taints are atomic)."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        elif key == "conditions":
            for one in value:
                into[key] = [c for c in into.get(key, []) if c["type"] != one["type"] or "$patch" not in one]
                if "$patch" in one:
                    continue
                old = next((c for c in into[key] if c["type"] == one["type"]), None)
                if old is None:
                    into[key].append(dict(one))
                else:
                    old.update(one)
        else:
            into[key] = value


def _refusal(status: int, message: str) -> Node:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(status, "Unknown"),
        "code": status,
    }


def _handler(api: KubeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = parse_qs(url.query)
            watching = query.get("watch", ["false"])[0].lower() == "true"
            if self._played(f"{url.path}{'?watch' if watching else ''}"):
                return
            if watching:
                assert query["fieldSelector"] == ["metadata.name=gpu-7"]
                self._watch(query["resourceVersion"][0])
            elif api.node is None or url.path != f"/api/v1/nodes/{api.node['metadata']['name']}":
                self._answer(404, _refusal(404, f"nodes {url.path.rpartition('/')[2]!r} not found"))
            else:
                self._answer(200, api.node)

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self._played(self.path):
                return
            assert self.headers["Content-Type"] == STRATEGIC, self.headers["Content-Type"]
            api.bodies.append(body)
            self._answer(*api.patched(body, self.path.endswith("/status")))

        def _played(self, path: str) -> bool:
            api.asked.append((self.command, path))
            played = api.fault(self.command, path)
            if played is None:
                return False
            if isinstance(played, bytes):
                self._send(200, played, {})
                return True
            status, headers = played
            if status:
                self._answer(status, _refusal(status, f"played {status}"), headers)
            else:  # the connection breaks
                self.close_connection = True
            return True

        def _answer(self, status: int, body: Node, headers: dict[str, str] | None = None) -> None:
            self._send(status, json.dumps(body).encode(), headers or {})

        def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _watch(self, version: str) -> None:
            lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            with api.lock:
                assert api.node is not None
                if int(version) < int(api.node["metadata"]["resourceVersion"]):
                    lines.put(json.dumps({"type": "MODIFIED", "object": api.node}).encode() + b"\n")
                api.watchers.append(lines)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                while (line := lines.get()) is not None:
                    if api.broken_watches:
                        self.wfile.write(b"%x\r\n%s" % (len(line), line[: len(line) // 2]))
                        break
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                else:
                    self.wfile.write(b"0\r\n\r\n")
            except OSError:
                pass
            finally:
                self.close_connection = True
                with api.lock:
                    api.watchers.remove(lines)

    return Handler


@contextlib.contextmanager
def running(node: Node | None = None) -> Iterator[KubeApi]:
    """One on a port of its own."""
    api = KubeApi(node or a_node())
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(api))
    server.daemon_threads = True
    api.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.end_watches()
        server.shutdown()
        server.server_close()
        thread.join(60)
