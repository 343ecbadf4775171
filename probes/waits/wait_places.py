"""Where a process waits, from its Python frames and from where the kernel has it.

Without native frames the innermost call is hidden if it is C: `lock.acquire()`, `time.sleep()` and `work.wait()` all
leave the program's own line as the innermost frame. So frames of libraries are read first, from the innermost one
outwards; at the first frame of the program itself only the kernel's function tells what it waits for.
"""

import enum

from muster.probes.kernel.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class RankStack:
    """Of the process that a rank is, at `t` (seconds since the epoch); all of one dump have the same `t`.

    `frames`: of the Python thread that says what it does, innermost first, in the form in which equal ones are equal.
    `state` and `wchan`: of that thread, or of the first one where that is stopped or blocked. `moves`: the thread was
    elsewhere at another look of the same dump, and `frames` are what stayed. `switches`: how often its first thread has
    waited so far; `others`: the same of all its other Python threads that are not idle (voluntary_ctxt_switches in
    proc(5)); None: unknown. `in_collective`: C and C++ frames show that it waits for other ranks. `wakes_in`: see Task.
    `helped`: another Python thread is busy, or waits for something else than a thread: it may be the one that is waited
    for. `faults`: how often its first thread touched a page of memory that was not there; None: unknown.
    """

    t: float
    rank: int
    pid: int
    state: str
    wchan: str = ""
    frames: tuple[str, ...] = ()
    moves: bool = False
    switches: int | None = None
    others: int | None = None
    in_collective: bool = False
    wakes_in: float | None = None
    helped: bool = False
    faults: int | None = None


class WaitKind(enum.StrEnum):
    """What a process waits for."""

    COLLECTIVE = "collective"  # for other ranks
    RENDEZVOUS = "rendezvous"  # for other ranks to come
    LOADER = "loader"
    CHECKPOINT = "checkpoint"
    COMPILER = "compiler"
    LOCK_FILE = "lock_file"
    PROMPT = "prompt"
    LOCK = "lock"
    SLEEP = "sleep"
    SERVER = "server"
    SOCKET = "socket"
    CHILD = "child"
    WORKERS = "workers"
    STOPPED = "stopped"
    TRACED = "traced"
    BLOCKED = "blocked"
    RUNS = "runs"
    COMPUTES = "computes"  # runs, in what is known to take long
    EXITED = "exited"
    ABSENT = "absent"  # as a communication library says; its stack is not known
    UNKNOWN = "unknown"


#: In words, behind "rank 2".
WORDS = {
    WaitKind.COLLECTIVE: "waits for other ranks",
    WaitKind.RENDEZVOUS: "waits for other ranks to join",
    WaitKind.LOADER: "waits for data",
    WaitKind.CHECKPOINT: "saves or loads a checkpoint",
    WaitKind.COMPILER: "compiles",
    WaitKind.LOCK_FILE: "waits for a lock file (its process may have been killed)",
    WaitKind.PROMPT: "waits at a prompt",
    WaitKind.LOCK: "waits",
    WaitKind.SLEEP: "sleeps",
    WaitKind.SERVER: "waits for requests",
    WaitKind.SOCKET: "waits for a socket or pipe",
    WaitKind.CHILD: "waits for a child process",
    WaitKind.WORKERS: "waits for processes or threads of its own",
    WaitKind.STOPPED: "is stopped by a signal (T)",
    WaitKind.TRACED: "is held by a debugger (t)",
    WaitKind.BLOCKED: "waits in the kernel (D)",
    WaitKind.RUNS: "runs",
    WaitKind.COMPUTES: "computes",
    WaitKind.EXITED: "has exited",
    WaitKind.ABSENT: "did not come to a collective",
    WaitKind.UNKNOWN: "waits",
}
_PLURALS = (
    ("waits", "wait"),
    ("sleeps", "sleep"),
    ("runs", "run"),
    ("computes", "compute"),
    ("compiles", "compile"),
    ("saves or loads", "save or load"),
    ("is ", "are "),
    ("has ", "have "),
    ("did ", "did "),
)


@dataclass(frozen=True, slots=True)
class WaitPlace:
    """`call`: the library's function, "all_reduce"; `line`: the innermost line of the program itself, "step
    (train.py:30)", or, of a process without Python, the kernel's function. Either may be empty."""

    kind: WaitKind
    call: str = ""
    line: str = ""

    @property
    def text(self) -> str:
        """ "sleeps in guilty (train.py:11)"."""
        return self._with_line(WORDS[self.kind])

    @property
    def plural(self) -> str:
        """ "sleep in guilty (train.py:11)"."""
        words = WORDS[self.kind]
        one, many = next(pair for pair in _PLURALS if words.startswith(pair[0]))
        return self._with_line(many + words[len(one) :])

    def _with_line(self, words: str) -> str:
        return f"{words} in {self.line or self.call}" if self.line or self.call else words


#: Libraries that send requests, or try them again after a pause.
_CLIENTS = (
    *(
        "grpc",
        "requests",
        "urllib3",
        "http",
        "aiohttp",
        "httpx",
        "httpcore",
        "botocore",
        "boto3",
        "s3transfer",
        "fsspec",
    ),
    *("gcsfs", "wandb", "mlflow", "huggingface_hub", "tenacity", "backoff", "paramiko"),
)
#: Parts of files of libraries, and what a frame there waits for; the first that fits counts. The frames were seen in
#: stacks of PyTorch on gloo, or stand in the sources of these libraries.
_FILES: tuple[tuple[str, WaitKind], ...] = (
    ("torch/distributed/rendezvous.py", WaitKind.RENDEZVOUS),
    ("torch/distributed/checkpoint/", WaitKind.CHECKPOINT),
    ("torch/distributed/elastic/", WaitKind.UNKNOWN),
    ("torch/distributed/", WaitKind.COLLECTIVE),
    ("torch/nn/parallel/", WaitKind.COLLECTIVE),
    ("torch/cuda/", WaitKind.COLLECTIVE),  # it waits for what the card does, a collective mostly
    ("torch_npu/npu/", WaitKind.COLLECTIVE),
    ("torch/autograd/graph.py", WaitKind.COLLECTIVE),
    ("deepspeed/comm/", WaitKind.COLLECTIVE),
    ("mpi4py/", WaitKind.COLLECTIVE),
    ("mindspore/communication/", WaitKind.COLLECTIVE),
    # It waits for what the card does, or on the CPU for what other threads do: a collective mostly.
    ("asnumpy (mindspore/common/tensor.py", WaitKind.COLLECTIVE),
    ("synchronize (mindspore/", WaitKind.COLLECTIVE),
    ("_exec_pip (mindspore/common/api.py", WaitKind.COLLECTIVE),
    (".compile (mindspore/common/api.py", WaitKind.COMPILER),
    (".compile_frontend (mindspore/common/api.py", WaitKind.COMPILER),
    ("mindspore/train/serialization.py", WaitKind.CHECKPOINT),
    ("torch/utils/data/", WaitKind.LOADER),
    ("mindspore/dataset/", WaitKind.LOADER),
    ("torch/serialization.py", WaitKind.CHECKPOINT),
    ("orbax/checkpoint", WaitKind.CHECKPOINT),
    ("megatron/core/dist_checkpointing", WaitKind.CHECKPOINT),
    ("torch/_inductor/", WaitKind.COMPILER),
    ("torch/_dynamo/convert_frame.py", WaitKind.COMPILER),
    ("triton/", WaitKind.COMPILER),
    ("torch/utils/file_baton.py", WaitKind.LOCK_FILE),
    ("filelock/", WaitKind.LOCK_FILE),
    ("torch/utils/cpp_extension", WaitKind.COMPILER),
    ("ipykernel/", WaitKind.PROMPT),
    ("IPython/", WaitKind.PROMPT),
    ("debugpy/", WaitKind.PROMPT),
    ("(pdb.py", WaitKind.PROMPT),
    ("(bdb.py", WaitKind.PROMPT),
    ("(code.py", WaitKind.PROMPT),
    ("(cmd.py", WaitKind.PROMPT),
    ("(subprocess.py", WaitKind.CHILD),
    ("(multiprocessing/pool.py", WaitKind.WORKERS),
    ("(concurrent/futures/", WaitKind.WORKERS),
    ("joblib/", WaitKind.WORKERS),
    ("tensorflow/python/data/", WaitKind.LOADER),
    ("nvidia/dali/", WaitKind.LOADER),
    ("grpc/_server.py", WaitKind.SERVER),
    *(
        (f"{name}/", WaitKind.SOCKET)
        for name in ("grpc", "requests", "urllib3", "http", "aiohttp", "httpx", "httpcore")
    ),
    *(
        (f"{name}/", WaitKind.SOCKET)
        for name in ("botocore", "boto3", "s3transfer", "fsspec", "gcsfs", "wandb", "mlflow")
    ),
    *((f"{name}/", WaitKind.SOCKET) for name in _CLIENTS),
    ("(socket.py", WaitKind.SOCKET),
    ("(ssl.py", WaitKind.SOCKET),
    ("asyncio/", WaitKind.SERVER),
    ("(socketserver.py", WaitKind.SERVER),
    ("uvicorn/", WaitKind.SERVER),
    ("tornado/", WaitKind.SERVER),
    ("vllm/v1/engine/", WaitKind.SERVER),
    ("vllm/distributed/device_communicators/shm_broadcast.py", WaitKind.SERVER),
    ("ray/_private/worker.py", WaitKind.SERVER),
)
#: Files of libraries of which a frame says nothing by itself: who calls it does.
_PASSED = (
    *(
        "torch/",
        "mindspore/",
        "(threading.py",
        "(queue.py",
        "(selectors.py",
        "multiprocessing/",
        "(contextlib.py",
    ),
    *("(functools.py", "(importlib", "<frozen "),
)
#: Files of libraries in which a rank may compute for long while the others wait for it, in one call of C or Rust.
_COMPUTING_FILES = (
    *(
        "transformers/tokenization",
        "tokenizers/",
        "sentencepiece/",
        "tiktoken/",
        "datasets/",
        "megatron/core/datasets/",
    ),
    *("fairseq/data/", "evaluate/", "torchmetrics/", "sacrebleu/", "rouge_score/", "nltk/", "spacy/", "pycocotools/"),
    *("sklearn/", "scipy/", "numpy/", "numba/", "pandas/", "pyarrow/", "polars/", "faiss/", "PIL/", "cv2/", "librosa/"),
    *("(json/", "(pickle.py", "safetensors/", "h5py/", "zarr/", "(gzip.py", "(tarfile.py", "(zipfile"),
)
#: Parts of the names of functions that say the same of a program.
_COMPUTING_NAMES = (
    *("evaluat", "validat", "metric", "score", "tokeniz", "preprocess", "prepare_data", "load_data", "build_index"),
    *("build_sample", "build_vocab", "compile"),
)
#: Kinds of libraries' frames that count wherever they are in a stack, the innermost first.
_BELOW = frozenset({WaitKind.CHECKPOINT, WaitKind.LOADER, WaitKind.COMPILER, WaitKind.LOCK_FILE})
#: By the kernel's function, at a line of the program itself.
_KERNEL = (
    ("futex", WaitKind.LOCK),
    ("nanosleep", WaitKind.SLEEP),
    ("n_tty_read", WaitKind.PROMPT),
    ("accept", WaitKind.SERVER),
    ("epoll", WaitKind.SERVER),
    ("wait_woken", WaitKind.PROMPT),
    ("do_wait", WaitKind.CHILD),
    *((name, WaitKind.SOCKET) for name in ("poll", "stream_read", "sk_wait", "recv", "pipe_read", "connect")),
)


def place(stack: RankStack) -> WaitPlace:
    """Where its telling thread waits."""
    line = next((frame for frame in stack.frames if _of_library(frame) is None), "")
    if stuck := {"T": WaitKind.STOPPED, "t": WaitKind.TRACED, "D": WaitKind.BLOCKED}.get(stack.state):
        return WaitPlace(stuck, "", line or stack.wchan)
    # What a program's own line does below a save, a load or a compiler is part of that: a slow file, a retry. That it
    # waits there for another process to be done says more.
    for frame in stack.frames:
        if (kind := _of_library(frame)) in _BELOW:
            return WaitPlace(kind, frame.partition(" (")[0], line)
    for frame in stack.frames:
        kind = _of_library(frame)
        if kind is None:
            break
        if kind is not WaitKind.UNKNOWN:
            return WaitPlace(kind, frame.partition(" (")[0], line)
    if stack.in_collective:
        return WaitPlace(WaitKind.COLLECTIVE, "", line)
    if stack.state == "R" or stack.moves:
        known = any(_takes_long(frame) for frame in stack.frames)
        return WaitPlace(WaitKind.COMPUTES if known else WaitKind.RUNS, "", line)
    kind = next((kind for name, kind in _KERNEL if name in stack.wchan), WaitKind.UNKNOWN)
    return WaitPlace(kind, "", line or stack.wchan)


def _takes_long(frame: str) -> bool:
    """Whether a frame is of something that is known to compute for long."""
    name, _, file = frame.lower().partition(" (")
    return any(part in name for part in _COMPUTING_NAMES) or any(
        part.lower() in f"({file}" for part in _COMPUTING_FILES
    )


def _of_library(frame: str) -> WaitKind | None:
    """What a frame of a library waits for, UNKNOWN where it does not say; None for one of the program itself."""
    found = next((kind for part, kind in _FILES if part in frame), None)
    return WaitKind.UNKNOWN if found is None and any(part in frame for part in _PASSED) else found
