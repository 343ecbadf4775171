"""One Node object of a Kubernetes cluster, by the client library of Kubernetes (extra `kubernetes`): read, patched and
watched, each call with a limit, and what goes wrong as one kind of error."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from muster.agent.cli.exits import CommandFailed, Exit
from muster.probes.kernel.known_names import IN_POD

try:
    from kubernetes import client, config, watch
    from urllib3.exceptions import (
        ConnectTimeoutError,
        HTTPError,
        NewConnectionError,
        ProtocolError,
        ReadTimeoutError,
        SSLError,
    )
except ImportError as missing:
    raise CommandFailed(
        f"the client library of Kubernetes is not installed ({missing}): pip install 'muster-agent[kubernetes]'",
        Exit.FAILURE,
    ) from None

#: Seconds: to connect, and for an answer.
CALL_S = (5.0, 15.0)
#: So long the server keeps a watch; an answer that is later than that by some seconds does not come any more.
WATCH_S = 300
_LATE_S = 20.0
#: What to do about a status.
_REMEDIES = {
    401: "the token is not valid: check that the ServiceAccount's token is mounted, or that the kubeconfig is current",
    403: "the ServiceAccount lacks the right: bind it to the ClusterRole of examples/kubernetes/kube.yaml",
    404: "name the node as `kubectl get nodes` does: --node, or NODE_NAME from spec.nodeName",
    422: "an admission policy or the version of the cluster does not allow what muster writes: the message says what",
    429: "the API server limits how often it is called: give a longer --every",
    503: "the API server is down or overloaded: look at it with `kubectl get --raw /readyz`",
}
#: What to do about any other, by its first digit.
_CLASSES = {
    4: "the API server does not take this call: check that it is one, and no proxy",
    5: "the API server or a proxy before it has failed: look into its log, or at `kubectl get --raw /readyz`",
}
#: What was watched has to be read anew.
GONE = 410
_CONFLICT, _TOO_MANY = 409, 429
#: Where a call or a watch is cut off.
CUT = "check the API server, and the time limits of proxies and load balancers before it"
_NO_NODE = "the answer is not a Node object: check the API server's address, and proxies before it"
#: The longest that a server may ask to be left alone, in seconds: what stands between may ask for days.
_MOST_LATER_S = 300.0


class KubeFailed(Exception):
    """Raised when a call failed. `status`: HTTP's; 0: there was no answer. `retry_after`: seconds; 0: nothing was
    asked for."""

    def __init__(self, message: str, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after

    @property
    def gone(self) -> bool:
        """Whether what was watched has to be read anew."""
        return self.status == GONE

    @property
    def conflict(self) -> bool:
        """The object has changed since it was read."""
        return self.status == _CONFLICT


class NodeApi:
    """The object of the node called `name`. Every method blocks, for as long as CALL_S says, and raises KubeFailed."""

    def __init__(self, name: str, kubeconfig: str = "") -> None:
        """Raises CommandFailed where nothing says which cluster this is."""
        self.name = name
        settings = client.Configuration()
        _check_file(kubeconfig)
        try:
            if not kubeconfig and IN_POD in os.environ:
                config.load_incluster_config(client_configuration=settings)
            else:  # without a name: KUBECONFIG, or the user's own
                config.load_kube_config(kubeconfig or None, client_configuration=settings)
        except Exception as error:  # of a file that is no kubeconfig the library raises whatever reading it raised
            named = kubeconfig or os.environ.get("KUBECONFIG", "")
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise CommandFailed(
                f"no cluster: {f'{named}: ' if named else ''}{why}: run in a pod with a ServiceAccount, or name a "
                "kubeconfig with --kubeconfig",
                Exit.USAGE,
            ) from None
        settings.retries = False  # the loop tries again, and says so
        self._client = client.ApiClient(settings)
        self._nodes = client.CoreV1Api(self._client)

    def read(self) -> dict[str, Any]:
        """The object now."""
        with self._told("read"):
            return self._plain(self._nodes.read_node(self.name, _request_timeout=CALL_S))

    def patch(self, body: Mapping[str, Any], *, status: bool) -> dict[str, Any]:
        """Changes it by a strategic merge patch, and returns what it is now. `status`: only its status, otherwise all
        but its status."""
        call = self._nodes.patch_node_status if status else self._nodes.patch_node
        with self._told("patch the status of" if status else "patch"):
            return self._plain(call(self.name, dict(body), _request_timeout=CALL_S))

    def follow(self, version: str) -> Iterator[dict[str, Any]]:
        """The object at each change after `version`; ends when the server ends the watch. With status 410 it must be
        read anew."""
        watching = watch.Watch()
        with self._told("watch"):
            stream = watching.stream(
                self._nodes.list_node,
                field_selector=f"metadata.name={self.name}",
                resource_version=version,
                timeout_seconds=WATCH_S,
                _request_timeout=(CALL_S[0], WATCH_S + _LATE_S),
            )
            for event in stream:
                if event["type"] == "DELETED":
                    raise KubeFailed(f"node {self.name} was removed from the cluster", GONE)
                yield self._whole(event["raw_object"])

    def _plain(self, node: Any) -> dict[str, Any]:
        return self._whole(self._client.sanitize_for_serialization(node))

    def _whole(self, node: Any) -> dict[str, Any]:
        """Raises ValueError for what is not this node's object: a proxy's page, or half an answer. Taken for the object
        it would be a node without marks, or one that was written."""
        match node:
            case {"metadata": {"name": self.name, "resourceVersion": str()}}:
                metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
                if isinstance(spec, dict) and isinstance(status, dict) and isinstance(metadata.get("labels", {}), dict):
                    lists = spec.get("taints") or [], status.get("conditions") or []
                    if all(isinstance(one, list) and all(isinstance(each, dict) for each in one) for one in lists):
                        found: dict[str, Any] = node
                        return found
        raise ValueError(_NO_NODE)

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except client.ApiException as error:
            status = int(error.status or 0)
            remedy = _REMEDIES.get(status) or _CLASSES.get(status // 100, "")
            said = f"{status} {_message(error)}" if status else _message(error)
            text = f"cannot {what} node {self.name}: {said}" + (f": {remedy}" if remedy else "")
            raise KubeFailed(text, status, _retry_after(error)) from None
        except (HTTPError, OSError) as error:
            raise KubeFailed(f"cannot {what} node {self.name}: {_silence(error)}") from None
        except (AttributeError, LookupError, TypeError, ValueError):  # also of the library: an answer unlike others
            raise KubeFailed(f"cannot {what} node {self.name}: {_NO_NODE}") from None


def _check_file(kubeconfig: str) -> None:
    """Raises CommandFailed where there is no such file: the library does not name it."""
    try:
        if kubeconfig:
            open(kubeconfig, "rb").close()
    except OSError as error:
        text = f"--kubeconfig: {kubeconfig}: {error.strerror}: name a file that you can read"
        raise CommandFailed(text, Exit.USAGE) from None


def _message(error: Any) -> str:
    """Of the Status object that the server sends, else HTTP's own words."""
    try:
        return str(json.loads(error.body)["message"])
    except (KeyError, TypeError, ValueError):
        return str(error.reason or "no answer that can be understood")


def _retry_after(error: Any) -> float:
    told = str((error.headers or {}).get("Retry-After", "")) if error.status in (_TOO_MANY, 503) else ""
    return min(float(told), _MOST_LATER_S) if told.isascii() and told.isdigit() else 0.0


def _silence(error: BaseException) -> str:
    """No answer of the server's, in words. urllib3's own are names of its classes and addresses of its objects."""
    said = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ReadTimeoutError):
        return "the API server did not answer in time: see whether it is overloaded"
    why = said.rpartition(": ")[2]
    if isinstance(error, ConnectTimeoutError | NewConnectionError):
        return f"no connection to the API server: {why}: check its address, and the network between it and this node"
    if isinstance(error, SSLError):
        return f"no secure connection to the API server: {said}: check its certificate and the kubeconfig's authority"
    if isinstance(error, ProtocolError | ConnectionError):
        return f"the connection was closed before the end of the answer: {CUT}"
    return said if isinstance(error, OSError) else f"{said}: {CUT}"
