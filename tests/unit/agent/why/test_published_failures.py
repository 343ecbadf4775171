"""Failures as people and sources published them: the cause that is found, its rank among its peers', and the advice."""

from pathlib import Path

import pytest

from muster.agent.logs.log_reading import RankLogFile
from muster.agent.why import log_signs
from muster.agent.why.causes.advice import advise
from muster.agent.why.causes.probable_cause import causes
from muster.agent.why.facts import Facts
from muster.agent.why.log_signs import Sign, Wanted
from muster.agent.why.signatures import builtin
from muster.supervisors.model.lifecycle import Verdict
from muster.supervisors.model.states import Outcome
from tests.unit.why_facts import facts, rank

EARLY = Verdict(1, "rank 0 exited with code 1", 0, recommendation="FAIL", recommendation_reason="early")
#: What the other ranks of a job write once one of them has failed.
PEERS = {
    "nccl": (
        "Traceback (most recent call last):\n"
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:94, remote process exited or there was a network "
        "error, NCCL version 2.27.3\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\n"
        "socketProgress: Connection closed by remote peer n1<4711>\n"
    ),
    "hccl": (
        "Traceback (most recent call last):\n"
        "RuntimeError: The Inner error is reported as above, error code is 507048\n"
        "EI0002: [PID: 4712] 2026-03-12-11:31:05.1 The wait execution of the Notify register times out. Reason: The "
        "Notify register has not received the Notify record from remote rank: [2].\n"
    ),
}
#: Where it was published, the signature, the advice, the output.
FAILURES = [
    (
        "PyTorch, dataloader.py",
        "data-loader-timeout",
        "FAIL",
        "Traceback (most recent call last):\nRuntimeError: DataLoader timed out after 120 seconds\n",
    ),
    (
        "Linux, AER",
        "pcie-error",
        "RETRY_ELSEWHERE",
        "[1.2] pcieport 0000:40:01.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer\n",
    ),
    (
        "NVIDIA, NVSwitch",
        "cuda-nvlink",
        "RETRY_ELSEWHERE",
        "nvidia-nvswitch3: SXid (PCI:0000:87:00.0): 20034, Fatal, Link 36 LTSSM Fault Up\n",
    ),
    (
        "NVIDIA/DALI#4382",
        "cuda-init",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: Critical error when building pipeline:\n"
        "nvml error (999): A nvml internal driver error occurred\n",
    ),
    (
        "wandb, quota",
        "login-refused",
        "FAIL",
        "Traceback (most recent call last):\n"
        "wandb.errors.errors.CommError: Error uploading run: returned error 403: permission denied (Error "
        "403: Forbidden)\n",
    ),
    (
        "OpenAI's client",
        "server-not-ready",
        "RETRY_HERE",
        "Traceback (most recent call last):\nopenai.RateLimitError: Error code: 429 - rate limit reached\n",
    ),
    (
        "CPython, stack overflow",
        "cpp-uncaught",
        "FAIL",
        "Fatal Python error: Cannot recover from stack overflow.\nPython runtime state: initialized\n",
    ),
    (
        "Intel Fortran",
        "cpp-uncaught",
        "FAIL",
        "forrtl: error (65): floating invalid\n",
    ),
    (
        "Open MPI, signal",
        "crash-signal",
        "FAIL",
        "[c01:4711] *** Process received signal ***\n[c01:4711] Signal: Floating point exception (8)\n",
    ),
    (
        "Linux, oops",
        "kernel-hang",
        "RETRY_ELSEWHERE",
        "[812.3] BUG: unable to handle page fault for address: ffffb2c0\n[812.4] Oops: 0002 [#1] SMP NOPTI\n",
    ),
    (
        "systemd, shutdown",
        "node-shutdown",
        "RETRY_ELSEWHERE",
        "Broadcast message from root@n1: The system is going down for reboot NOW!\n",
    ),
    (
        "mlx5, health",
        "nic-lost",
        "RETRY_ELSEWHERE",
        "mlx5_core 0000:1a:00.0: poll_health:824: device's health compromised - reached miss count\n",
    ),
    (
        "Slurm, layout",
        "usage",
        "FAIL",
        "srun: error: Application launch failed: Unable to layout tasks on given cpus\n",
    ),
    (
        "SLURM, PMI",
        "mpi-launch",
        "FAIL",
        "The application appears to have been direct launched using srun, but OMPI was not built with "
        "SLURM's PMI support\n",
    ),
    (
        "setrlimit, RLIMIT_CPU",
        "resource-limit",
        "FAIL",
        "run.sh: line 3: 4711 Cputime limit exceeded python train.py\n",
    ),
    (
        "GNU make",
        "shell-script",
        "FAIL",
        "make: *** No rule to make target 'train'.  Stop.\n",
    ),
    (
        "TensorFlow, collectives",
        "tensorflow-peer-gone",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "tensorflow.python.framework.errors_impl.UnavailableError: Collective ops is aborted by: failed to "
        "connect to all addresses; Connection refused\n",
    ),
    (
        "Linux, kernel/watchdog.c",
        "kernel-hang",
        "RETRY_ELSEWHERE",
        "[81234.1] watchdog: BUG: soft lockup - CPU#17 stuck for 23s! [python3:4711]\n",
    ),
    (
        "Kubernetes",
        "memory-limit",
        "FAIL",
        "Last State: Terminated, Reason: OOMKilled, Exit Code: 137\n",
    ),
    (
        "Linux, mm/memcontrol.c",
        "memory-limit",
        "FAIL",
        "[12345.6] Memory cgroup out of memory: Killed process 4711 (python3) total-vm:81234kB\n",
    ),
    (
        "kubelet, eviction",
        "evicted-storage",
        "RETRY_ELSEWHERE",
        "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 9Gi.\n",
    ),
    (
        "Rust, alloc",
        "host-out-of-memory",
        "FAIL",
        "memory allocation of 68719476736 bytes failed\n",
    ),
    (
        "SGLang",
        "cuda-out-of-memory",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n",
    ),
    (
        "vLLM",
        "cuda-out-of-memory",
        "FAIL",
        "Traceback (most recent call last):\n"
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine.\n",
    ),
    (
        "NCCL, alloc.h",
        "cuda-out-of-memory",
        "FAIL",
        "Traceback (most recent call last):\n"
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled cuda error\n"
        "Last error:\n"
        "Failed to CUDA calloc async 2432 bytes\n",
    ),
    (
        "PyTorch, MultinomialKernel.cu",
        "probabilities-not-finite",
        "FAIL",
        "MultinomialKernel.cu:112: block: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` "
        "or element < 0` failed.\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: CUDA error: device-side assert triggered\n",
    ),
    (
        "PyTorch, CUDAFunctions.cpp",
        "cuda-init",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
        "calling NumCudaDevices() that might have already set an error? Error 999: unknown error\n",
    ),
    (
        "flash-attention",
        "cuda-wrong-architecture",
        "FAIL",
        "Traceback (most recent call last):\nRuntimeError: FlashAttention only supports Ampere GPUs or newer.\n",
    ),
    (
        "ROCm, rocminfo",
        "device-permission",
        "FAIL",
        "Unable to open /dev/kfd read-write: Permission denied\n"
        'user is not member of "render" group, the default DRM access group.\n',
    ),
    (
        "NCCL, ibvwrap.cc",
        "gpu-direct",
        "RETRY_ELSEWHERE",
        "n1:1:1 [0] misc/ibvwrap.cc:212 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address\n",
    ),
    (
        "PyTorch, distributed.py",
        "collective-mismatch",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 160 params, while rank 0 has "
        "inconsistent 0 params.\n",
    ),
    (
        "PyTorch, reducer.cpp",
        "ddp-unused-parameters",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n",
    ),
    (
        "PyTorch, cuda/__init__.py",
        "cuda-in-fork",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
        "must use the 'spawn' start method\n",
    ),
    (
        "Lightning",
        "loss-not-finite",
        "FAIL",
        "Traceback (most recent call last):\nValueError: The loss returned in `training_step` is nan.\n",
    ),
    (
        "PyTorch, rendezvous.py",
        "environment-variable",
        "FAIL",
        "Traceback (most recent call last):\n"
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable "
        "MASTER_ADDR expected, but not set\n",
    ),
    (
        "Python, os.environ",
        "environment-variable",
        "FAIL",
        "Traceback (most recent call last):\nKeyError: 'LOCAL_RANK'\n",
    ),
    (
        "bash, set -u",
        "environment-variable",
        "FAIL",
        "run.sh: line 3: DATA_DIR: unbound variable\n",
    ),
    (
        "OmegaConf",
        "configuration",
        "FAIL",
        "Traceback (most recent call last):\nomegaconf.errors.ConfigAttributeError: Key 'max_epoch' is not in struct\n",
    ),
    (
        "transformers, trust_remote_code",
        "configuration",
        "FAIL",
        "Traceback (most recent call last):\n"
        "ValueError: The repository for x contains custom code which must be executed to correctly load the "
        "model.\n",
    ),
    (
        "bash",
        "shell-script",
        "FAIL",
        "run.sh: line 12: syntax error near unexpected token `done'\n",
    ),
    (
        "Open MPI, mpirun",
        "shell-script",
        "FAIL",
        "mpirun was unable to find the specified executable file, and therefore\ndid not launch the job.\n",
    ),
    (
        "Docker",
        "container",
        "FAIL",
        'docker: Error response from daemon: OCI runtime create failed: exec: "torchrun": executable file '
        "not found in $PATH: unknown.\n",
    ),
    (
        "conda",
        "working-set-missing",
        "FAIL",
        "EnvironmentNameNotFound: Could not find conda environment: train\n",
    ),
    (
        "CPython, initconfig.c",
        "python-broken",
        "FAIL",
        "Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding\n"
        "ModuleNotFoundError: No module named 'encodings'\n",
    ),
    (
        "glibc, dl-load.c",
        "mounted-noexec",
        "FAIL",
        "Traceback (most recent call last):\n"
        "ImportError: /tmp/x/fused.so: failed to map segment from shared object: Operation not permitted\n",
    ),
    (
        "tokenizers",
        "library-too-old",
        "FAIL",
        "Traceback (most recent call last):\n"
        "Exception: data did not match any variant of untagged enum ModelWrapper at line 757443 column 3\n",
    ),
    (
        "Python, json",
        "data-not-readable",
        "FAIL",
        "Traceback (most recent call last):\njson.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n",
    ),
    (
        "py-lmdb",
        "lmdb",
        "FAIL",
        "Traceback (most recent call last):\n"
        "lmdb.MapFullError: mdb_put: MDB_MAP_FULL: Environment mapsize limit reached\n",
    ),
    (
        "HDF5, H5FD_sec2.c",
        "hdf5-lock",
        "FAIL",
        "Traceback (most recent call last):\n"
        "BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11, error message = "
        "'Resource temporarily unavailable')\n",
    ),
    (
        "psycopg2, login",
        "login-refused",
        "FAIL",
        "Traceback (most recent call last):\n"
        "sqlalchemy.exc.OperationalError: (psycopg2.OperationalError) connection to server failed: FATAL:  "
        'password authentication failed for user "x"\n',
    ),
    (
        "urllib3, proxy",
        "login-refused",
        "FAIL",
        "Traceback (most recent call last):\nOSError: Tunnel connection failed: 407 Proxy Authentication Required\n",
    ),
    (
        "PostgreSQL, starting",
        "server-not-ready",
        "RETRY_HERE",
        "Traceback (most recent call last):\npsycopg2.OperationalError: FATAL:  the database system is starting up\n",
    ),
    (
        "Node.js",
        "connection-refused",
        "RETRY_HERE",
        "Error: connect ECONNREFUSED 127.0.0.1:6379\n",
    ),
    (
        "curl, 60",
        "certificate",
        "FAIL",
        "curl: (60) SSL certificate problem: unable to get local issuer certificate\n",
    ),
    (
        "munge",
        "node-service",
        "RETRY_ELSEWHERE",
        'munge: Error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory\n',
    ),
    (
        "libstdc++",
        "cpp-uncaught",
        "FAIL",
        "terminate called after throwing an instance of 'std::out_of_range'\n"
        "  what():  vector::_M_range_check: __n (which is 7) >= this->size() (which is 4)\n",
    ),
    (
        "gfortran",
        "cpp-uncaught",
        "FAIL",
        "At line 12 of file solver.f90\n"
        "Fortran runtime error: Index '11' of dimension 1 of array 'x' above upper bound of 10\n",
    ),
    (
        "glibc, assert",
        "cpp-uncaught",
        "FAIL",
        "solver: mesh.c:88: refine: Assertion `n > 0' failed.\n",
    ),
    (
        "Open MPI, truncate",
        "mpi-program-error",
        "FAIL",
        "[c01:4711] *** An error occurred in MPI_Recv\n[c01:4711] *** MPI_ERR_TRUNCATE: message truncated\n",
    ),
    (
        "Intel MPI, OFI",
        "mpi-transport",
        "FAIL",
        "MPIDI_OFI_mpi_init_hook(1048): OFI addrinfo() failed (ofi_init.c:1048:MPIDI_OFI_mpi_init_hook:No "
        "data available)\n",
    ),
    (
        "CANN, 207004",
        "cann-driver",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: SetPrecisionMode: NPU function error: aclrtSetDevice, error code is 207004\n",
    ),
    (
        "torch_npu, op retry",
        "hccl-network",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\nRuntimeError: HCCL OP RETRY FAILED.\n",
    ),
    (
        "tar",
        "file-not-found-line",
        "FAIL",
        "tar: /data/ds.tar: Cannot open: No such file or directory\n",
    ),
    (
        "Linux, x86 machine checks",
        "host-memory-error",
        "RETRY_ELSEWHERE",
        "[ 8123.401] mce: [Hardware Error]: Machine check events logged\n",
    ),
    (
        "Linux, mm/oom_kill.c",
        "node-memory-low",
        "RETRY_ELSEWHERE",
        "[12345.678901] Out of memory: Killed process 4711 (python3) total-vm:81234kB, anon-rss:61234kB\n",
    ),
    (
        "a script of its own",
        "error-line",
        "FAIL",
        "step 1 loss 2.1\nERROR: checkpoint version 3 is not supported, aborting\n",
    ),
    (
        "Python's logging",
        "error-line",
        "FAIL",
        "2026-11-25 12:00:01,123 - trainer - ERROR - world size 8 does not divide 12\n",
    ),
    (
        "CPython, tempfile.py",
        "no-space",
        "FAIL",
        "Traceback (most recent call last):\n"
        "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', '/work']\n",
    ),
    (
        "gorakhargosh/watchdog#673",
        "inotify-limit",
        "FAIL",
        "Traceback (most recent call last):\n"
        '  File "inotify_c.py", line 435, in _raise_error\n'
        "OSError: [Errno 28] inotify watch limit reached\n",
    ),
    (
        "oneAPI, ur_api.h",
        "cuda-device-lost",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)\n",
    ),
    (
        "Gaudi, synapse_common_types.h",
        "cuda-device-lost",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\nRuntimeError: synStatus=8 [Device not found] Device acquire failed.\n",
    ),
    (
        "PSM2, psm_ep.c",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "e001.53882PSM2 no hfi units are active (err=23)\n",
    ),
    (
        "Linux, EHWPOISON",
        "host-memory-error",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\nOSError: [Errno 133] Memory page has hardware error\n",
    ),
    (
        "HCCL, hccl_socket.cc",
        "address-in-use",
        "RETRY_HERE",
        "[ERROR] HCCL(2717288,python3):2026-11-29-13:47:57.070.463 [hccl_socket.cc:100] [2717288][HcclSocket][Listen] "
        "socket type[1], listen on ip[192.168.20.160] and specific port[16666] fail. Please check the port status and "
        "whether the port is been using by other process.\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: HCCL function error: HcclCommInitRootInfoConfig, error code is 19\n"
        "[ERROR] 2026-11-29-13:47:58 (PID:2717288, Device:1, RankID:1) ERR02200 DIST call hccl api failed.\n",
    ),
    (
        "PostgreSQL, fe-misc.c",
        "service-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "psycopg2.OperationalError: server closed the connection unexpectedly\n"
        "\tThis probably means the server terminated abnormally\n\tbefore or while processing the request.\n",
    ),
    (
        "openucx/ucx, ib_iface.c",
        "memlock-limit",
        "FAIL",
        "[1764423842.101] [node-2:2211 :0] ib_iface.c:1139 UCX  ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate "
        "memory : Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: ucp_ep_create failed: Input/output error\n",
    ),
    (
        "Neuron runtime, error codes",
        "neuron-hardware",
        "RETRY_ELSEWHERE",
        "2026-Nov-29 13:44:02.0114 22113:23001 ERROR  NMGR:dlr_infer  Inference completed with err: 1201 "
        "(NRT_EXEC_HW_ERR_HBM_UE)\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: Bad StatusOr access: INTERNAL: Execution failed with status code 1201\n",
    ),
    (
        "MindSpore, compute_graph_node.cc",
        "mindspore-scheduler",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: Failed to register the compute graph node: 1. Reach max retry times, timeout to connect to the "
        "scheduler 10.0.0.1:8118.\n",
    ),
    (
        "PyTorch, TCPStore.cpp",
        "rendezvous-incomplete",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 2/3 clients joined.\n",
    ),
    (
        "PyTorch, TORCH_INTERNAL_ASSERT in an extension",
        "assertion",
        "FAIL",
        "terminate called after throwing an instance of 'c10::Error'\n"
        '  what():  index >= 0 && index < sizes.size() INTERNAL ASSERT FAILED at "/w/csrc/moe_dispatch.cpp":118, '
        "please report a bug to PyTorch. expert index 64 out of range\n"
        "Exception raised from dispatch at /w/csrc/moe_dispatch.cpp:118 (most recent call first):\n",
    ),
    (
        "pytorch/pytorch, ProcessGroupNCCL.cpp",
        "nccl-setup",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "torch.distributed.DistNetworkError: [2] is setting up NCCL communicator and retrieving ncclUniqueId from [0] "
        "via c10d key-value store by store->get('0'), but store->get('0') got error: Socket Timeout\n",
    ),
    (
        "pytorch/pytorch, c10d, seconds",
        "rendezvous-refused",
        "RETRY_HERE",
        "torch.distributed.DistNetworkError: The client socket has timed out after 300s while trying to connect to "
        "(trainer-master-0, 23456).\n",
    ),
    (
        "kubernetes-client/python, rest.py",
        "service-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "kubernetes.client.exceptions.ApiException: (500)\nReason: Internal Server Error\n"
        'HTTP response body: {"message":"etcdserver: request timed out","code":500}\n',
    ),
    (
        "redis/redis-py, exceptions.py",
        "service-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "redis.exceptions.BusyLoadingError: Redis is loading the dataset in memory\n",
    ),
    (
        "Slurm, launch.c",
        "usage",
        "FAIL",
        "srun: error: Unable to create step for job 118233: Invalid generic resource (gres) specification\n",
    ),
    (
        "PyTorch, MapAllocator.cpp",
        "too-many-files",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: unable to open shared memory object </torch_8412_3382781205_1021> in read-write mode: Too many "
        "open files (24)\n",
    ),
    (
        "Linux, ext4",
        "io-error",
        "RETRY_ELSEWHERE",
        "EXT4-fs error (device nvme0n1p1): ext4_journal_check_start:83: comm python3: Detected aborted journal\n"
        "Traceback (most recent call last):\n"
        "OSError: [Errno 30] Read-only file system: '/local_nvme/cache/job_8812'\n",
    ),
    (
        "splitbrain/Watcher#23",
        "inotify-limit",
        "FAIL",
        "2017-10-19 08:54:02,971 pyinotify ERROR] add_watch: cannot watch /data/train WD=-1, Errno=No space left on "
        "device (ENOSPC)\n",
    ),
    (
        "OpenNLPLab/lightning-attention#19",
        "cuda-illegal-access",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered\n",
    ),
    (
        "PaddlePaddle/Paddle#57411",
        "cuda-launch-failure",
        "FAIL",
        "Traceback (most recent call last):\n"
        "OSError: (External) CUDA error(719), unspecified launch failure. \n"
        "  [Hint: 'cudaErrorLaunchFailure'. An exception occurred on the device while executing a kernel. "
        "Common causes include dereferencing an invalid device pointer and accessing out of bounds shared "
        "memory.] (at ../paddle/phi/backends/gpu/cuda/cuda_info.cc:259)\n",
    ),
    (
        "PaddlePaddle/Paddle, enforce.h",
        "cuda-ecc",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "OSError: (External) CUDA error(214), uncorrectable ECC error encountered. \n"
        "  [Hint: 'cudaErrorECCUncorrectable'.] (at ../paddle/phi/backends/gpu/cuda/cuda_info.cc:259)\n",
    ),
    (
        "pytorch/pytorch#10853",
        "cuda-launch-timeout",
        "FAIL",
        "THCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCTensorCopy.cpp "
        "line=21 error=6 : the launch timed out and was terminated\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: cuda runtime error (6) : the launch timed out and was terminated at "
        "/pytorch/aten/src/THC/generic/THCTensorCopy.cpp:21\n",
    ),
    (
        "kaldi-asr/kaldi#2636",
        "cuda-launch-failure",
        "FAIL",
        'ERROR (nnet3-train[5.4]:CopyToVec():cu-vector.cc:899) cudaError_t 4 : "unspecified launch failure" '
        "returned from 'cudaMemcpy(dst->Data(), this->data_, sizeof(Real) * dim_, cudaMemcpyDeviceToHost)'\n"
        "\n"
        "[ Stack-Trace: ]\n"
        "\n"
        "kaldi::MessageLogger::HandleMessage(kaldi::LogMessageEnvelope const&, char const*)\n",
    ),
    (
        "apache/mxnet#14034",
        "cuda-launch-failure",
        "FAIL",
        "Traceback (most recent call last):\n"
        "mxnet.base.MXNetError: [13:12:11] src/engine/threaded_engine.h:359: Check failed: err == "
        "cudaSuccess (4 vs. 0) Name: MapPlanKernel ErrStr:unspecified launch failure\n",
    ),
    (
        "NVIDIA/DeepLearningExamples#3",
        "cuda-launch-failure",
        "FAIL",
        "F0628 19:13:22.730959  3624 context_gpu.h:107] Check failed: error == cudaSuccess unspecified "
        "launch failure\n"
        "*** Check failure stack trace: ***\n",
    ),
    (
        "ray-project/ray_lightning#24",
        "cuda-peer-access",
        "FAIL",
        "z-pc:909608:910337 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer "
        "access is not supported between these two devices\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:7"
        "84, unhandled cuda error, NCCL version 2.7.8\n",
    ),
    (
        "hiyouga/EasyR1#579",
        "cuda-peer-access",
        "FAIL",
        "Traceback (most recent call last):\n"
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroup"
        "NCCL.cpp:3699, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\n"
        "Cuda failure 217 'peer access is not supported between these two devices'\n",
    ),
    (
        "NVIDIA/nccl#955",
        "cuda-driver-too-old",
        "RETRY_ELSEWHERE",
        "n1:205826:205907 [0] misc/strongstream.cc:53 NCCL WARN Cuda failure 'API call is not supported in "
        "the installed CUDA driver'\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, unhandled "
        "cuda error, NCCL version 2.14.3\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\n"
        "Cuda failure 'API call is not supported in the installed CUDA driver'\n",
    ),
    (
        "MIC-DKFZ/nnUNet#1519",
        "cuda-ecc",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
    ),
    (
        "NVIDIA/nvidia-docker#1691",
        "cuda-init",
        "RETRY_ELSEWHERE",
        "nvidia-container-cli: initialization error: driver rpc error: timed out\n",
    ),
    (
        "pytorch/pytorch#74235",
        "xid",
        "RETRY_ELSEWHERE",
        "[12345.678] NVRM: Xid (PCI:0000:01:00): 109, pid=4124, name=python, Ch 00000028, errorString CTX "
        "SWITCH TIMEOUT, Info 0x2c014\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: CUDA error: unspecified launch failure\n",
    ),
    (
        "fla-org/flash-linear-attention#7",
        "cuda-illegal-access",
        "FAIL",
        "n136-180-028:1707397:1709473 [6] include/alloc.h:124 NCCL WARN Cuda failure 700 'an illegal memory "
        "access was encountered'\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, unhandled "
        "cuda error, NCCL version 2.18.6\n",
    ),
    (
        "ROCm/rccl#59",
        "cuda-illegal-access",
        "FAIL",
        "Memory access fault by GPU node-1 (Agent handle: 0x1563ba0) on address (nil). Reason: Page not "
        "present or supervisor privilege.\n",
    ),
    (
        "ROCm/legacy-rocm-build#6023",
        "cuda-launch-failure",
        "FAIL",
        ":0:rocdevice.cpp            :2984: 185480406807 us: [pid:17 tid:0x7f] Callback: Queue "
        "0x7f0c00000000 Aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a "
        "hardware exception. code: 0x1016\n",
    ),
    (
        "rwth-i6/returnn#1466",
        "no-interface",
        "FAIL",
        "nd20-01:275975:275975 [0] misc/socket.cc:379 NCCL WARN Call to bind failed : Cannot assign "
        "requested address\n"
        "Traceback (most recent call last):\n"
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219,"
        " unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.1\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. "
        "\n"
        "Last error:\n"
        "Call to bind failed : Cannot assign requested address\n",
    ),
    (
        "codefuse-ai/MFTCoder#31",
        "no-interface",
        "FAIL",
        "Traceback (most recent call last):\n"
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/dist"
        "ributed/c10d/ProcessGroupNCCL.cpp:1207, internal error, NCCL version 2.14.3\n"
        "ncclInternalError: Internal check failed.\n"
        "Last error:\n"
        "Bootstrap : no socket interface found\n",
    ),
    (
        "NVIDIA/nccl#975",
        "nccl-setup",
        "RETRY_HERE",
        "n122-246-085:12251:12400 [5] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to "
        "fe80::966d:ae03:a2:8cf0%ib1<17943> failed : Software caused connection abort\n"
        "Traceback (most recent call last):\n"
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219,"
        " unhandled system error, NCCL version 2.18.3\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. "
        "\n",
    ),
    (
        "NVIDIA/nccl, net_ib/p2p.cc",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "ubuntu2:319733:319761 [1] transport/net_ib/p2p.cc:648 NCCL WARN NET/IB: Got completion from peer "
        "10.153.235.13<40554> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RECV_RDMA_WITH_IMM(129) "
        "vendor_err=129 localGid ::ffff:1.1.2.2 remoteGids::ffff:1.1.1.4 hca mlx5_1\n"
        "Traceback (most recent call last):\n"
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:94, remote process exited or there was a "
        "network error, NCCL version 2.29.2\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
        "prematurely.\n",
    ),
    (
        "NVIDIA/nccl, net_ib.cc",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "tpgds:185303:186751 [1] transport/net_ib.cc:2453 NCCL WARN NET/IB: Got completion from peer "
        "10.99.91.63<51161> with status=4 opcode=32614 len=32614 vendor err 81 (Send) localGid "
        "::ffff:10.99.92.59 remoteGids::ffff:10.99.91.63 hca mlx5_1\n"
        "ncclRemoteError: A call failed possibly due to a network error\n",
    ),
    (
        "NVIDIA/nccl, net_ib.cc",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "n3:1:2 [0] transport/net_ib.cc:120 NCCL WARN NET/IB: ibp198s0f0:1 async fatal event on QP: local "
        "access violation work queue error\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n",
    ),
    (
        "vllm-ascend#486",
        "hccl-connect",
        "RETRY_HERE",
        "[rank2]: RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function "
        "error: HcclAllreduce, error code is 6\n"
        "[rank2]: [ERROR] 2025-04-08-18:07:20 (PID:1292363, Device:1, RankID:1) ERR01100 OPS call acl api "
        "failed.\n"
        "[rank2]: EI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: "
        "Remote Rank did not send the data in time. Please check the reason for the rank being stuck\n"
        "[rank2]:         Solution: 1. Check the rank service processes with other errors or no errors in "
        "the cluster.2. If this error is reported for all NPUs, check whether the time difference between "
        "the earliest and latest errors is greater than the connect timeout interval (120s by default).\n",
    ),
    (
        "vllm-ascend#8360",
        "cann-aicore",
        "FAIL",
        "[758] [2026-05-08 03:20:32:000] torch.distributed: [ERROR] [859] Find exception when "
        "finishedNPUExecutionInternal, query:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:61 NPU "
        "function error: acl::AclQueryEventRecordedStatus(event_, &currStatus), error code is 507011\n"
        "[ERROR] 2026-05-08-03:20:31 (PID:758, Device:9, RankID:-1) ERR00100 PTA call acl api failed\n"
        "[Error]: Model execution failed.\n"
        "        Rectify the fault based on the error information in the ascend log.\n"
        "[PID: 758] 2026-05-08-03:20:31.532.507 Invalid_Argument(EL0003): The argument is invalid.\n"
        "        Solution: Try again with a valid argument.\n"
        "        TraceBack (most recent call last):\n"
        "        The error from device(chipId:4, dieId:1), serial number is 3, there is an exception of "
        "fftsplus aicore error, core id is 0, error code = 0x800000, dump info: pc start: 0x12c0c131862c\n"
        "[rank9]:[E508 03:20:31.678676591 compiler_depend.ts:1693] [Rank 9] HCCL watchdog thread terminated "
        "with exception:\n"
        "[ERROR] 2026-05-08-03:20:32 (PID:758, Device:9, RankID:-1) ERR02005 DIST internal error\n"
        "terminate called after throwing an instance of 'std::runtime_error'\n",
    ),
    (
        "vllm-ascend#8186",
        "cann-device-memory-error",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: npuSynchronizeDevice:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:508 NPU "
        "function error: AclrtSynchronizeDeviceWithTimeout, error code is 507010\n"
        "[PID: 389] 2026-05-01-10:59:14.702.326 Device_Absent/Abnormal(EL0001): Device not found or invalid.\n"
        "        Possible Cause: Device does not exist or is abnormal.\n"
        "        Solution: Check the error messages in the log.\n"
        "        TraceBack (most recent call last):\n"
        "        [drv api] halCqReportRecv failed: device_id=1, ts_id=0, type=2, logic_cq=4, "
        "drv_ret_code=33[FUNC:LogicCqReportV2][FILE:npu_driver_res.cc][LINE:2103]\n"
        "        Device[1] lost heartbeat.[FUNC:SyncTask][FILE:direct_hwts_engine.cc][LINE:407]\n"
        "        rtDeviceSynchronizeWithTimeout execution failed, reason=lost "
        "heartbeat[FUNC:FuncErrorReason][FILE:error_message_manage.cc][LINE:65]\n",
    ),
    (
        "CANN, error_message_manage.cc",
        "cann-driver",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: synchronize failed\n"
        "EE9999: Inner Error!\n"
        "        Device[1] lost heartbeat.[FUNC:SyncTask][FILE:direct_hwts_engine.cc][LINE:407]\n"
        "        rtDeviceSynchronizeWithTimeout execute failed, reason=[lost "
        "heartbeat][FUNC:FuncErrorReason][FILE:error_message_manage.cc][LINE:53]\n",
    ),
    (
        "vllm-ascend#1815",
        "hccl-network",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: EJ0002: [PID: 38079] 2025-07-15-12:45:31.202.787 The network port is down.\n",
    ),
    (
        "vllm-ascend#167",
        "cann-runtime",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: Initialize:torch_npu/csrc/core/npu/sys_ctrl/npu_sys_ctrl.cpp:146 NPU function error: "
        "c10_npu::SetDevice(device_id_), error code is 107001\n"
        "[ERROR] 2025-02-26-09:45:37 (PID:118835, Device:0, RankID:-1) ERR00100 PTA call acl api failed\n"
        "[Error]: Invalid device ID.\n"
        "        Check whether the device ID is valid.\n"
        "EE1001: [PID: 118835] 2025-02-26-09:45:37.118.835 The argument is invalid.Reason: Set visible "
        "device failed, invalid device=1, input visible devices:1\n"
        "        Solution: 1.Check the input parameter range of the function. 2.Check the function "
        "invocation relationship.\n"
        "        rtSetDevice execute failed, reason=[device id error][FUNC:FuncErrorReason][FILE:error_messag"
        "e_manage.cc][LINE:53]\n"
        "        open device 1 failed, runtime result = 107001.[FUNC:ReportCallError][FILE:log_inner.cpp][LIN"
        "E:161]\n",
    ),
    (
        "gpustack#3352",
        "cann-runtime",
        "FAIL",
        "[ERROR] RUNTIME(42,python):2025-11-18-09:33:13.666.323 [runtime.cc:5632]58 "
        "GetVisibleDevices:[INIT][DEFAULT]set ASCEND_RT_VISIBLE_DEVICES:[4] error, input data rang[0-2)\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: Initialize:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:207 NPU function error: "
        "aclInit(init_json_path.c_str()), error code is 107001\n",
    ),
    (
        "vllm-ascend#692",
        "cann-inner-error",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: SetPrecisionMode:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:155 NPU function "
        "error: at_npu::native::AclSetCompileopt(aclCompileOpt::ACL_PRECISION_MODE, precision_mode), error "
        "code is 500001\n"
        "[ERROR] 2025-04-28-02:50:24 (PID:1439, Device:0, RankID:-1) ERR00100 PTA call acl api failed\n"
        "[Error]: The internal ACL of the system is incorrect.\n"
        "        Rectify the fault based on the error information in the ascend log.\n"
        "EH9999: Inner Error!\n"
        "EH9999: [PID: 1439] 2025-04-28-02:50:24.965.356 [Init][PlatformInfo]init runtime platform info "
        "failed, SocVersion = Ascend910B2[FUNC:ReportInnerError][FILE:log_inner.cpp][LINE:145]\n"
        "        TraceBack (most recent call last):\n"
        "       GELib::InnerInitialize failed.[FUNC:Initialize][FILE:gelib.cc][LINE:177]\n",
    ),
    (
        "vllm-ascend#2105",
        "cann-aicpu",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: npuSynchronizeDevice failed\n"
        "EH9999: Inner Error!\n"
        "        rtDeviceSynchronizeWithTimeout execute failed, reason=[aicpu "
        "exception][FUNC:FuncErrorReason][FILE:error_message_manage.cc][LINE:53]\n"
        "EH9999: [PID: 56178] 2025-07-30-06:16:22.730.302 wait for compute device to finish failed, runtime "
        "result = 507018.[FUNC:ReportCallError][FILE:log_inner.cpp][LINE:161]\n",
    ),
    (
        "verl#332",
        "hccl-process-left",
        "RETRY_HERE",
        "(TaskRunner pid=467613) RuntimeError: create_config:build/CMakeFiles/torch_npu.dir/compiler_depend.t"
        "s:102 HCCL function error: hcclCommInitRootInfoConfig(numRanks, &rootInfo, rank, config, "
        "&(comm->hcclComm_)), error code is 7\n"
        "(TaskRunner pid=467613) [ERROR] 2025-04-24-16:14:56 (PID:468348, Device:0, RankID:2) ERR02200 DIST "
        "call hccl api failed.\n"
        "(TaskRunner pid=467613) EJ0001: [PID: 468348] 2025-04-24-16:14:56.975.866 Failed to initialize the "
        "HCCP process. Reason: Maybe the last training process is running.\n",
    ),
    (
        "vllm-ascend#1558",
        "cann-driver",
        "RETRY_ELSEWHERE",
        "RuntimeError: Initialize:torch_npu/csrc/core/npu/sys_ctrl/npu_sys_ctrl.cpp:146 NPU function error: "
        "c10_npu::SetDevice(device_id_), error code is 507033\n"
        "[ERROR] 2025-07-01-08:38:50 (PID:114020, Device:-1, RankID:1) ERR00100 PTA call acl api failed\n",
    ),
    (
        "CANN's HCCL, its table of error codes",
        "hccl-connect",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: create_config:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:102 HCCL function "
        "error: hcclCommInitRootInfoConfig(numRanks, &rootInfo, rank, config, &(comm->hcclComm_)), error "
        "code is 4\n"
        "[ERROR] 2026-03-12-11:02:05 (PID:4711, Device:3, RankID:3) ERR02200 DIST call hccl api failed.\n"
        "[PID: 4711] 2026-03-12-11:02:05.123.456 Ranktable_Detect_Failed(EI0015): The communicator cluster "
        "information negotiation failed. Reason: Receiving message from the root node timed out after 120 "
        "seconds. Timeout was set to 120 seconds.\n",
    ),
    (
        "CANN's GE, its table of error codes",
        "cann-argument",
        "FAIL",
        "EZ3003: [PID: 4711] 2024-11-11-10:00:00.000.001 No supported Ops kernel and engine are found for "
        "[MyOp_111], optype [MyOp].\n"
        "        Possible Cause: The operator is not supported by the system. Therefore, no hit is found in "
        "any operator information library.\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: Compile graph failed, graph id:1\n",
    ),
    (
        "torch_npu, NPUException.h",
        "cann-device-memory-error",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: synchronize failed, error code is 507054\n"
        "EE9999: Inner Error!\n"
        "        rtStreamSynchronize execute failed, reason=[hbm Multi-bit ECC error]\n",
    ),
    (
        "pytorch#107021",
        "rendezvous-refused",
        "RETRY_HERE",
        "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to "
        "192.0.0.1:1234\n"
        "Traceback (most recent call last):\n"
        '  File "/opt/conda/bin/torchrun", line 8, in <module>\n'
        "    sys.exit(main())\n"
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d "
        "store has failed. See inner exception for details.\n",
    ),
    (
        "PyTorch, elastic/rendezvous/api.py",
        "rendezvous-refused",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        '  File "/opt/conda/bin/torchrun", line 8, in <module>\n'
        "    sys.exit(main())\n"
        "torch.distributed.elastic.rendezvous.api.RendezvousGracefulExitError\n",
    ),
    (
        "torchtune#2676",
        "gloo-peer-gone",
        "RETRY_HERE",
        "[rank2]:     work.wait()\n"
        "[rank2]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed "
        "out waiting 1800000ms for recv operation to complete\n",
    ),
    (
        "DeepSpeed#4907",
        "ssh-login",
        "FAIL",
        "Traceback (most recent call last):\n"
        "subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no 192.168.3.100 hostname' "
        "returned non-zero exit status 255.\n"
        "\n"
        "During handling of the above exception, another exception occurred:\n"
        "\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: Using hostfile at hostfile but host=192.168.3.100 was not reachable via ssh. If you "
        "are running with a single node please remove hostfile or setup passwordless ssh.\n",
    ),
    (
        "Megatron-DeepSpeed#356",
        "file-not-found",
        "FAIL",
        "c000001: FileNotFoundError: [Errno 2] No such file or directory: "
        "'/dataset/index-cache/43d5bc1477867ae12d66da383c2b664b_doc_idx.npy'\n",
    ),
    (
        "ompi#3133",
        "mpi-slots",
        "FAIL",
        "--------------------------------------------------------------------------\n"
        "There are not enough slots available in the system to satisfy the 16\n"
        "slots that were requested by the application:\n"
        "\n"
        "  ./train\n"
        "\n"
        "Either request fewer slots for your application, or make more slots\n"
        "available for use.\n"
        "--------------------------------------------------------------------------\n",
    ),
    (
        "horovod#504",
        "connection-refused",
        "RETRY_HERE",
        "ssh: connect to host 192.168.11.1 port 50000: Connection refused\n"
        "--------------------------------------------------------------------------\n"
        "ORTE was unable to reliably start one or more daemons.\n"
        "This usually is caused by:\n"
        "\n"
        "* not finding the required libraries and/or binaries on\n"
        "  one or more nodes. Please check your PATH and LD_LIBRARY_PATH\n"
        "  settings, or configure OMPI with --enable-orterun-prefix-by-default\n",
    ),
    (
        "horovod#301",
        "command-not-found",
        "FAIL",
        "bash: /usr/local/bin/orted: No such file or directory\n"
        "--------------------------------------------------------------------------\n"
        "ORTE was unable to reliably start one or more daemons.\n"
        "This usually is caused by:\n"
        "\n"
        "* not finding the required libraries and/or binaries on\n"
        "  one or more nodes.\n",
    ),
    (
        "OpenSSH",
        "ssh-login",
        "FAIL",
        "Host key verification failed.\n"
        "--------------------------------------------------------------------------\n"
        "ORTE was unable to reliably start one or more daemons.\n"
        "This usually is caused by:\n",
    ),
    (
        "horovod#467",
        "ssh-login",
        "FAIL",
        "root@10.94.1.165: Permission denied (publickey,password).\n"
        "--------------------------------------------------------------------------\n"
        "ORTE was unable to reliably start one or more daemons.\n",
    ),
    (
        "horovod#2043",
        "mpi-peer-gone",
        "RETRY_HERE",
        "------------------------------------------------------------\n"
        "A process or daemon was unable to complete a TCP connection\n"
        "to another process:\n"
        "  Local host:    psxi1mzh8\n"
        "  Remote host:   psfwnezg3\n"
        "This is usually caused by a firewall on the remote host. Please\n"
        "check that any firewall (e.g., iptables) has been disabled and\n"
        "try again.\n"
        "------------------------------------------------------------\n",
    ),
    (
        "openucx/ucx#5199",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "[master:19546:0:19546] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 "
        "vend 0x81 hw_synd 0/0)\n"
        "[master:19546:0:19546] ib_mlx5_log.c:139  DCI QP 0xa9f wqe[0]: SEND s-e [rqpn 0xa66 rlid 703] [inl "
        "len 18]\n"
        "==== backtrace (tid:  19546) ====\n",
    ),
    (
        "openucx/ucx#3087",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "[hpc-polar-01-vm001:13210:0:13210]    ud_iface.c:732  UCX Fatal: transport error: Endpoint timeout\n",
    ),
    (
        "Slurm",
        "slurm-node-failed",
        "RETRY_HERE",
        "slurmstepd: error: *** STEP 52222788.0 ON nid002888 CANCELLED AT 2026-04-29T23:36:37 DUE TO NODE "
        "FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"
        "srun: error: Node failure on nid002888\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n",
    ),
    (
        "jax#23599",
        "jax-peer-gone",
        "RETRY_HERE",
        "2024-10-09 15:47:38.568412: E external/xla/xla/tsl/distributed_runtime/coordination/coordination_ser"
        "vice.cc:1170] /job:jax_worker/replica:0/task:3 has been set to ERROR in coordination service: "
        "UNAVAILABLE: Task /job:jax_worker/replica:0/task:3 heartbeat timeout. This indicates that the "
        "remote task has failed, got preempted, or crashed unexpectedly. Check the task logs for an earlier "
        "error to debug further. [type.googleapis.com/tensorflow.CoordinationServiceError='']\n",
    ),
    (
        "marin#7650",
        "jax-peer-gone",
        "RETRY_HERE",
        "WatchTasksAsync failed for task 3: UNAVAILABLE: failed to connect to all addresses; last error: "
        "UNKNOWN: ipv4:10.186.213.145:13305: Failed to connect to remote host: Connection refused\n",
    ),
    (
        "llama-2-jax#20",
        "jax-peer-gone",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: "
        "PjRT_Client_Connect. Timed out task names:\n"
        "/job:jax_worker/replica:0/task:1\n",
    ),
    (
        "marin#7650",
        "jax-peer-gone",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "jax.errors.JaxRuntimeError: ABORTED: /job:jax_worker/replica:0/task:3 unexpectedly tried to connect "
        "with a different incarnation. It has likely restarted.\n",
    ),
    (
        "XLA, tf_allocator_adapter",
        "cuda-out-of-memory",
        "FAIL",
        "Traceback (most recent call last):\n"
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 16.00GiB "
        "(17179869184B) on device ordinal 0\n",
    ),
    (
        "PaddlePaddle/Paddle, cuda_allocator.cc",
        "cuda-out-of-memory",
        "FAIL",
        "MemoryError: \n"
        "\n"
        "--------------------------------------\n"
        "C++ Traceback (most recent call last):\n"
        "--------------------------------------\n"
        "0   paddle::memory::allocation::CUDAAllocator::AllocateImpl(unsigned long)\n"
        "----------------------\n"
        "Error Message Summary:\n"
        "----------------------\n"
        "ResourceExhaustedError: \n"
        "\n"
        "Out of memory error on GPU 0. Cannot allocate 15.503906GB memory on GPU 0, 28.770508GB memory has "
        "been allocated and available memory is only 10.815613GB.\n",
    ),
    (
        "YOLOX#34",
        "data-loader",
        "FAIL",
        "Exception in thread Thread-1:\n"
        "Traceback (most recent call last):\n"
        '  File "/x/torch/utils/data/_utils/pin_memory.py", line 28, in _pin_memory_loop\n'
        "    r = in_queue.get(timeout=MP_STATUS_CHECK_INTERVAL)\n"
        '  File "/x/multiprocessing/connection.py", line 509, in Client\n'
        "    answer_challenge(c, authkey)\n"
        "ConnectionResetError: [Errno 104] Connection reset by peer\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: Pin memory thread exited unexpectedly\n",
    ),
    (
        "sd-scripts#1790",
        "too-many-mappings",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: unable to mmap 4096 bytes from file </torch_362873_3123855485_63350>: Cannot allocate "
        "memory (12)\n",
    ),
    (
        "pytorch#92134",
        "too-many-mappings",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: unable to mmap 2048 bytes from file <filename not specified>: Cannot allocate memory "
        "(12)\n",
    ),
    (
        "pytorch#973",
        "too-many-files",
        "FAIL",
        "Traceback (most recent call last):\nRuntimeError: received 0 items of ancdata\n",
    ),
    (
        "OpenBLAS",
        "too-many-processes",
        "FAIL",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 12 of 64: Resource temporarily "
        "unavailable\n"
        "OpenBLAS blas_thread_init: RLIMIT_NPROC 4096 current, 4096 max\n",
    ),
    (
        "glibc",
        "shared-library",
        "FAIL",
        "Traceback (most recent call last):\n"
        "OSError: /usr/lib/aarch64-linux-gnu/libgomp.so.1: cannot allocate memory in static TLS block\n",
    ),
    (
        "Ray",
        "node-memory-low",
        "RETRY_ELSEWHERE",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
        "Memory on the node (IP: 10.0.0.1, ID: ed95) where the task (actor ID: 308b) was running was "
        "480.10GB / 503.55GB (0.953), which exceeds the memory usage threshold of 0.95.\n",
    ),
    (
        "simpleRL-reason#25",
        "ray-peer-gone",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        "\tclass_name: ActorModelRayActorBOX\n"
        "\tpid: 12903\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit "
        "detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some "
        "potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage.\n",
    ),
    (
        "pytorch#10577",
        "io-error",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\nRuntimeError: write(): fd 29 failed with Input/output error\n",
    ),
    (
        "grid-lstm#5",
        "write-failed",
        "FAIL",
        "/home/a/torch/install/bin/luajit: /home/a/torch/install/share/lua/5.1/torch/File.lua:210: write "
        "error: wrote 39776036 blocks instead of 41251350 at /tmp/luarocks_torch-scm-1-1419/torch7/lib/TH/THD"
        "iskFile.c:340\n"
        "stack traceback:\n"
        "\t[C]: in function 'write'\n",
    ),
    (
        "XLM#184",
        "corrupt-checkpoint",
        "FAIL",
        "Traceback (most recent call last):\nRuntimeError: storage has wrong size: expected 0 got 512\n",
    ),
    (
        "deep-photo-aesthetics#4",
        "corrupt-checkpoint",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: unexpected EOF, expected 40975 more bytes. The file might be corrupted.\n",
    ),
    (
        "ReaLHF#44",
        "corrupt-checkpoint",
        "FAIL",
        "Traceback (most recent call last):\n"
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer\n",
    ),
    (
        "nnUNet#2533",
        "corrupt-checkpoint",
        "FAIL",
        "Traceback (most recent call last):\nValueError: mmap length is greater than file size\n",
    ),
    (
        "PyTorch, distributed/checkpoint",
        "no-space",
        "FAIL",
        "Traceback (most recent call last):\n"
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])\n"
        "Traceback (most recent call last): (RANK 2)\n"
        '  File "/x/torch/distributed/checkpoint/utils.py", line 192, in reduce_scatter\n'
        "    local_data = map_fun()\n"
        "OSError: [Errno 28] No space left on device: '/ckpt/step-100/__2_0.distcp'\n",
    ),
    (
        "PyTorch, distributed/checkpoint",
        "stale-handle",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])\n"
        "Traceback (most recent call last): (RANK 2)\n"
        '  File "/x/torch/distributed/checkpoint/utils.py", line 192, in reduce_scatter\n'
        "    local_data = map_fun()\n"
        "OSError: [Errno 116] Stale file handle\n",
    ),
    (
        "awsome-distributed-ai#1225",
        "write-failed",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 704 vs 598\n",
    ),
    (
        "datasets#7871",
        "store-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: Data processing error: CAS service error : Reqwest Error: HTTP status client error "
        "(429 Too Many Requests), domain: https://cas-server.xethub.hf.co/reconstructions/8100\n",
    ),
    (
        "datasets#7506",
        "store-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: "
        "https://huggingface.co/datasets/HuggingFaceFW/fineweb/resolve/9bb295ddab0e05d785b879661af7260fed5140"
        "fc/sample/10BT/000_00000.parquet\n",
    ),
    (
        "huggingface_hub, file_download.py",
        "store-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "OSError: Consistency check failed: file should be of size 4227858712 but has size 2290365199 "
        "(model-00045-of-00061.safetensors).\n"
        "This is usually due to network issues while downloading the file. Please retry with "
        "`force_download=True`.\n",
    ),
    (
        "huggingface_hub",
        "store-refused",
        "FAIL",
        "Traceback (most recent call last):\n"
        "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-67a1)\n"
        "\n"
        "Cannot access gated repo for url https://huggingface.co/meta-llama/Llama-2-7b-hf/resolve/main/config"
        ".json.\n"
        "Access to model meta-llama/Llama-2-7b-hf is restricted and you are not in the authorized list. "
        "Visit https://huggingface.co/meta-llama/Llama-2-7b-hf to ask for access.\n",
    ),
    (
        "gRPC, add_port.cc",
        "address-in-use",
        "RETRY_HERE",
        "E0706 14:40:44.123 add_port.cc:83] Failed to add port to server: No address added out of total 1 "
        "resolved for '[::]:8431' (UNKNOWN; '[::]:8431': Address already in use; '0.0.0.0:8431': Address "
        "already in use)\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: UNKNOWN: Failed to start RPC server\n",
    ),
    (
        "NVIDIA/nccl",
        "cuda-device-lost",
        "RETRY_ELSEWHERE",
        "n1:1:2 [0] init.cc:1 NCCL WARN Cuda failure 999 'unknown error'\n"
        "Traceback (most recent call last):\n"
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\n"
        "Cuda failure 999 'unknown error'\n",
    ),
    (
        "NVIDIA/nccl",
        "cuda-launch-failure",
        "FAIL",
        "Traceback (most recent call last):\n"
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\n"
        "Cuda failure 719 'unspecified launch failure'\n",
    ),
    (
        "nvidia-smi",
        "cuda-device-lost",
        "RETRY_ELSEWHERE",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the "
        "latest NVIDIA driver is installed and running.\n",
    ),
    (
        "pynvml",
        "cuda-device-lost",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\npynvml.NVMLError_DriverNotLoaded: Driver Not Loaded\n",
    ),
    (
        "PyTorch, CUDAFunctions.cpp",
        "cuda-init",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
        "calling NumCudaDevices() that might have already set an error? Error 304: OS call failed or "
        "operation not supported on this OS\n",
    ),
    (
        "PyTorch, CUDAFunctions.cpp",
        "cuda-out-of-memory",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
        "calling NumCudaDevices() that might have already set an error? Error 2: out of memory\n",
    ),
    (
        "CUDA",
        "cuda-wrong-architecture",
        "FAIL",
        "Traceback (most recent call last):\nRuntimeError: CUDA error: device kernel image is invalid\n",
    ),
    (
        "Python",
        "no-interface",
        "FAIL",
        "Traceback (most recent call last):\nOSError: [Errno 99] Cannot assign requested address\n",
    ),
    (
        "h5py",
        "hdf5-lock",
        "FAIL",
        "Traceback (most recent call last):\n"
        "BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11, error message = "
        "'Resource temporarily unavailable')\n",
    ),
    (
        "Linux",
        "io-error",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\nOSError: [Errno 37] No locks available\n",
    ),
    (
        "Python",
        "python-import",
        "FAIL",
        "/usr/bin/python3: No module named torch\n",
    ),
    (
        "Slurm",
        "memory-limit",
        "FAIL",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM "
        "Killed.\n"
        "srun: error: gpu-7: task 3: Out Of Memory\n",
    ),
    (
        "Slurm",
        "segfault",
        "FAIL",
        "srun: error: gpu-7: task 3: Segmentation fault (core dumped)\n",
    ),
    (
        "abseil",
        "segfault",
        "FAIL",
        "*** SIGSEGV received at time=1700000000 on cpu 12 ***\n"
        "PC: @     0x7f0  (unknown)  xla::PjRtStreamExecutorClient::Execute()\n"
        "    @     0x7f1  (unknown)  (unknown)\n",
    ),
    (
        "PyTorch, TCPStore.cpp",
        "store-peer-gone",
        "RETRY_HERE",
        "Traceback (most recent call last):\nRuntimeError: Stop_waiting response is expected\n",
    ),
    (
        "Arrow",
        "corrupt-checkpoint",
        "FAIL",
        "Traceback (most recent call last):\n"
        "pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer. Either the file is corrupted or "
        "this is not a parquet file.\n",
    ),
    (
        "Python",
        "corrupt-checkpoint",
        "FAIL",
        "Traceback (most recent call last):\nzlib.error: Error -3 while decompressing data: incorrect header check\n",
    ),
    (
        "TensorFlow",
        "corrupt-checkpoint",
        "FAIL",
        "Traceback (most recent call last):\n"
        "tensorflow.python.framework.errors_impl.DataLossError: corrupted record at 12\n",
    ),
    (
        "Open MPI --tag-output",
        "cuda-ecc",
        "RETRY_ELSEWHERE",
        "[1,2]<stderr>:Traceback (most recent call last):\n"
        '[1,2]<stderr>:  File "train.py", line 3, in <module>\n'
        "[1,2]<stderr>:    main()\n"
        "[1,2]<stderr>:RuntimeError: CUDA error: uncorrectable ECC error encountered\n",
    ),
    (
        "sgl-project/sglang#12464",
        "cann-aicore",
        "FAIL",
        "[rank3]:[W1031 21:35:04.838006795 compiler_depend.ts:57] Warning: EZ9999: Inner Error!\n"
        "EZ9999: [PID: 696742] 2025-10-31-21:35:03.992.057 The error from device(chipId:7, dieId:0), serial "
        "number is 2, there is an exception of aivec error, core id is 9, error code = 0\n"
        "       Kernel task happen error, retCode=0x31, [vector core exception].[FUNC:PreCheckTaskErr][FILE:d"
        "avinci_kernel_task.cc][LINE:1539]\n",
    ),
    (
        "hiyouga/LlamaFactory#3670",
        "cann-aicore",
        "FAIL",
        "  Message info[0]:RTS_HWTS: aicore exception, slot_id=31, stream_id=3\n"
        "    Other info[0]:time=2024-05-10-10:44:52.267.860, function=int_process_hwts_task_exception, "
        "line=296, error code=0x26\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: The Inner error is reported as above.\n"
        " Since the operator is called asynchronously, the stacktrace may be inaccurate.\n",
    ),
    (
        "candle-org/MindAct#1752",
        "cann-aicpu",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: Launch kernel failed: Bprop/gradDense/Reshape-op278\n"
        "\n"
        "- Ascend Error Message:\n"
        "E39999: Inner Error!\n"
        "E39999: 2024-10-20-22:34:40.965.193  The error from device(chipId:0, dieId:0), serial number is 3, "
        "an exception occurred during AICPU execution, stream_id:2, task_id:19016, errcode:21008, msg:inner "
        "error.\n"
        "        rtMemcpyAsync execute failed, reason=[aicpu exception][FUNC:FuncErrorReason][FILE:error_mess"
        "age_manage.cc][LINE:53]\n",
    ),
    (
        "mindspore-lab/mindaudio#164",
        "cann-aicpu",
        "FAIL",
        "[ERROR] DEVICE(44814,7f3352ffd700,python):2023-06-01-22:47:58.744.961 "
        "[mindspore/ccsrc/plugin/device/ascend/hal/hardware/ascend_utils.cc:35] ReportErrorMessage] Ascend "
        "error occurred, error message:\n"
        "E39999: Inner Error!\n"
        "E39999  Aicpu kernel execute failed, device_id=0, stream_id=12, "
        "task_id=2.[FUNC:PrintAicpuErrorInfo][FILE:task.cc][LINE:747]\n"
        "        rtStreamSynchronize execute failed, reason=[the model stream execute "
        "failed][FUNC:FuncErrorReason][FILE:error_message_manage.cc][LINE:45]\n",
    ),
    (
        "Ascend/pytorch#48",
        "hccl-timeout",
        "RETRY_HERE",
        "W NPUStream.cpp:409] Warning: NPU warning, error code is 507046[Error]: \n"
        "[Error]: In the specified timeout waiting event, all tasks in the specified stream are not "
        "completed. \n"
        "        Rectify the fault based on the error information in the ascend log.\n"
        "EE1002: 2024-09-03-16:50:00.041.231 Stream synchronize timeout. rtDeviceSynchronize execute failed, "
        "reason=[stream sync timeout]\n",
    ),
    (
        "cupy/cupy, runtime.pyx",
        "cuda-ecc",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorECCUncorrectable: uncorrectable ECC er"
        "ror encountered\n",
    ),
    (
        "gpuopenanalytics/pynvml, nvml.py",
        "cuda-device-lost",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        '  File "/opt/conda/lib/python3.10/site-packages/pynvml/nvml.py", line 979, in _nvmlCheckReturn\n'
        "    raise NVMLError(ret)\n"
        "pynvml.nvml.NVMLError_Unknown: Unknown Error\n",
    ),
    (
        "pytorch/pytorch, c10/hip",
        "cuda-illegal-access",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: HIP error: an illegal memory access was encountered\n"
        "HIP kernel errors might be asynchronously reported at some other API call, so the stacktrace bel"
        "ow might be incorrect.\n"
        "For debugging consider passing AMD_SERIALIZE_KERNEL=3\n",
    ),
    (
        "pytorch/pytorch, c10/hip, 2.9",
        "cuda-launch-failure",
        "FAIL",
        "Traceback (most recent call last):\n"
        "torch.AcceleratorError: HIP error: unspecified launch failure\n"
        "Search for `hipErrorLaunchFailure' in https://rocm.docs.amd.com\n",
    ),
    (
        "ROCm/ROCm#6137",
        "cuda-device-lost",
        "RETRY_ELSEWHERE",
        "HW Exception by GPU node-4 (Agent handle: 0x1b0fc990) reason :GPU Hang\n"
        "[n1:08475] *** Process received signal ***\n"
        "[n1:08475] Signal: Aborted (6)\n"
        "[n1:08475] Signal code:  (-6)\n",
    ),
    (
        "ROCm/hip#2187",
        "cuda-wrong-architecture",
        "FAIL",
        '/src/external/hip-on-vdi/rocclr/hip_code_object.cpp:120: guarantee(false && "hipErrorNoBinaryFor'
        "Gpu: Coudn't find binary for current devices!\")\n",
    ),
    (
        "NVIDIA/libnvidia-container, nvc_info.c",
        "cuda-init",
        "RETRY_ELSEWHERE",
        "nvidia-container-cli: detection error: nvml error: unknown error: unknown\n",
    ),
    (
        "triton-lang/triton, build.py",
        "extension-build",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set trito"
        "n.knobs.build.impl.\n",
    ),
    (
        "triton-lang/triton, errors.py",
        "graph-break-compile",
        "FAIL",
        "Traceback (most recent call last):\n"
        "triton.runtime.autotuner.OutOfResources: out of resource: shared memory, Required: 147456, Hardw"
        "are limit: 101376. Reducing block sizes or `num_stages` may help.\n",
    ),
    (
        "jax-ml/jax, libtpu",
        "tpu-in-use",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process "
        "with pid 4121. Not attempting to load libtpu.so in this process. (set JAX_PLATFORMS='' to automa"
        "tically choose an available backend)\n",
    ),
    (
        "openucx/ucx#10755",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "[c561-004:493850:0:493850] ib_mlx5_log.c:179  Remote operation error on mlx5_0:1/IB (synd 0x14 v"
        "end 0x89 hw_synd 0/0)\n"
        "[c561-004:493850:0:493850] ib_mlx5_log.c:179  RC QP 0x23b wqe[0]: RDMA_READ s-- [rva 0x14dfe965e"
        "880 rkey 0x185823] [va 0x14d89d506000 len 589824 lkey 0x185621] [rqpn 0xa90 dlid=4 sl=0 port=1 s"
        "rc_path_bits=0]\n"
        "==== backtrace (tid: 493850) ====\n"
        "0 0x0000000000012a10 uct_ib_mlx5_completion_with_err()  ???:0\n",
    ),
    (
        "openucx/ucx#10451",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "[1737742661.094513] [cn0244:260472:0]      ib_mlx5_dv.c:430  UCX  ERROR   mlx5dv_devx_obj_create"
        "(QP) failed on mlx5_0, syndrome 0x2c4154: Remote I/O error\n"
        "[cn0244:260472] pml_ucx.c:421  Error: ucp_ep_create(proc=47) failed: Input/output error\n"
        "[cn0244:260472] pml_ucx.c:472  Error: Failed to resolve UCX endpoint for rank 19\n",
    ),
    (
        "Open MPI users, btl_openib_component.c",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "[[36944,1],41][btl_openib_component.c:3227:handle_wc] from compute-01-19 to: compute-01-04 error"
        " polling LP CQ with status RETRY EXCEEDED ERROR status number 12 for wr_id 167703304 opcode 128 "
        " vendor error 129 qp_idx 3\n"
        "--------------------------------------------------------------------------\n"
        "The InfiniBand retry count between two MPI processes has been\n"
        "exceeded.\n",
    ),
    (
        "Cray MPICH, ofi_events.c",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "MPICH ERROR [Rank 1] [job id 858670.0] [Wed Mar  9 01:12:12 2022] [nid001986] - Abort(1687183) ("
        "rank 1 in comm 0): Fatal error in PMPI_Recv: Other MPI error, error stack:\n"
        "PMPI_Recv(177).................: MPI_Recv(buf=0x1, count=1) failed\n"
        "MPIDI_OFI_handle_cq_error(1059): OFI poll failed (ofi_events.c:1061:MPIDI_OFI_handle_cq_error:In"
        "put/output error - transport retry counter exceeded)\n",
    ),
    (
        "Cray MPICH, ofi_events.c, CXI",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "aborting job:\n"
        "Fatal error in PMPI_Test: Other MPI error, error stack:\n"
        "PMPI_Test(190).................: MPI_Test(request=0x5063830, flag=0x7ffe, status=0x7ffe) failed\n"
        "MPIDI_OFI_handle_cq_error(1062): OFI poll failed (ofi_events.c:1064:MPIDI_OFI_handle_cq_error:In"
        "put/output error - VNI_NOT_FOUND)\n",
    ),
    (
        "cornelisnetworks/opa-psm2, opa_proto.c",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "n7.12345hfi_wait_for_device: The /dev/hfi1_0 device failed to appear after 15.0 seconds: Connect"
        "ion timed out\n",
    ),
    (
        "linux-rdma/rdma-core, providers/mlx5/cq.c",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "mlx5: n12: got completion with error:\n"
        "00000000 00000000 00000000 00000000\n"
        "00000000 00000000 00000000 00000000\n"
        "00000001 00000000 00000000 00000000\n"
        "00000000 00008813 080000a9 000b5ed2\n",
    ),
    (
        "Linux, errno.h, ENOTSUPP",
        "io-error",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\nOSError: [Errno 524] Unknown error 524: '/mnt/nfs/ckpt/step_100.pt'\n",
    ),
    (
        "Linux, ENODEV of a file system",
        "io-error",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\nOSError: [Errno 19] No such device: '/mnt/pfs/train/shard-7.tar'\n",
    ),
    (
        "SQLite, SQLITE_IOERR",
        "io-error",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\nsqlite3.OperationalError: disk I/O error\n",
    ),
    (
        "SQLite, SQLITE_FULL",
        "no-space",
        "FAIL",
        "Traceback (most recent call last):\nsqlite3.OperationalError: database or disk is full\n",
    ),
    (
        "LMDB, mdb.c",
        "corrupt-checkpoint",
        "FAIL",
        "Traceback (most recent call last):\n"
        "lmdb.CorruptedError: mdb_get: MDB_CORRUPTED: Located page was wrong type\n",
    ),
    (
        "HDFGroup/hdf5, H5FDsec2.c",
        "io-error",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "OSError: Unable to synchronously open file (file read failed: time = Tue Mar  5 10:11:12 2024\n"
        ", filename = '/gpfs/data/train.h5', file descriptor = 31, errno = 5, error message = 'Input/outp"
        "ut error', buf = 0x7ffd, total read size = 8)\n",
    ),
    (
        "apache/hadoop, StandbyException",
        "service-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "py4j.protocol.Py4JJavaError: An error occurred while calling o52.load.\n"
        ": org.apache.hadoop.ipc.RemoteException(org.apache.hadoop.ipc.StandbyException): Operation categ"
        "ory READ is not supported in state standby. Visit https://s.apache.org/sbnn-error\n",
    ),
    (
        "apache/hadoop, hdfs dfs",
        "service-unavailable",
        "RETRY_HERE",
        "mkdir: Cannot create directory /user/a/ckpt. Name node is in safe mode.\n",
    ),
    (
        "apache/hadoop, DSQuotaExceededException",
        "disk-quota",
        "FAIL",
        "put: org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: The DiskSpace quota of /user/a is"
        " exceeded: quota = 1099511627776 B = 1 TB but diskspace consumed = 1099511900000 B = 1.00 TB\n",
    ),
    (
        "Java, UnknownHostException",
        "name-resolution",
        "RETRY_HERE",
        "ls: java.net.UnknownHostException: nn1.hadoop.local\n",
    ),
    (
        "minio/minio-py, error.py",
        "store-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "minio.error.S3Error: S3 operation failed; code: SlowDownRead, message: Resource requested is unr"
        "eadable, please reduce your request rate, resource: /b/x, request_id: 17, host_id: d, bucket_nam"
        "e: b, object_name: x\n",
    ),
    (
        "minio/minio-py, error.py, ServerError",
        "service-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\nminio.error.ServerError: server failed with HTTP status code 502\n",
    ),
    (
        "minio/minio-py, error.py, AccessDenied",
        "store-refused",
        "FAIL",
        "Traceback (most recent call last):\n"
        "minio.error.S3Error: S3 operation failed; code: AccessDenied, message: Access Denied., resource:"
        " /b/x, request_id: 17\n",
    ),
    (
        "apache/arrow, s3fs.cc",
        "service-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "OSError: When reading information for key 'train/000.parquet' in bucket 'data': AWS Error UNKNOW"
        "N (HTTP status 503) during HeadObject operation: No response body.\n",
    ),
    (
        "boto/botocore, exceptions.py",
        "store-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "botocore.exceptions.SSLError: SSL validation failed for https://s3.local/b/k EOF occurred in vio"
        "lation of protocol (_ssl.c:2427)\n",
    ),
    (
        "fsspec/gcsfs, retry.py",
        "service-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "gcsfs.retry.HttpError: We encountered an internal error. Please try again., 503\n",
    ),
    (
        "googleapis/google-resumable-media-python, common.py",
        "service-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "google.resumable_media.common.InvalidResponse: ('Request failed with status code', 503, 'Expecte"
        "d one of', <HTTPStatus.OK: 200>)\n",
    ),
    (
        "tensorflow/tensorflow, retrying_utils.cc",
        "service-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "tensorflow.python.framework.errors_impl.AbortedError: All 10 retry attempts failed. The last fai"
        "lure: Error executing an HTTP request: HTTP response code 503\n",
    ),
    (
        "huggingface/xet-core",
        "service-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: Data processing error: CAS service error : ReqwestMiddleware Error: Request failed"
        " after 5 retries\n",
    ),
    (
        "Amazon S3, RequestTimeTooSkewed",
        "node-clock",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "botocore.exceptions.ClientError: An error occurred (RequestTimeTooSkewed) when calling the PutOb"
        "ject operation: The difference between the request time and the current time is too large.\n",
    ),
    (
        "OpenSSL, X509_V_ERR_CERT_NOT_YET_VALID",
        "node-clock",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certif"
        "icate is not yet valid (_ssl.c:1007)\n",
    ),
    (
        "Go, net.DNSError",
        "name-resolution",
        "RETRY_HERE",
        'ERROR "cp s3://b/ckpt.tar /tmp/ckpt.tar": RequestError: send request failed caused by: Get "http'
        's://s3.local/b/ckpt.tar": dial tcp: lookup s3.local on 10.96.0.10:53: no such host\n',
    ),
    (
        "Go, net.OpError",
        "connection-refused",
        "RETRY_HERE",
        'Failed to copy: Put "https://obs.local/b/x": dial tcp 10.9.8.7:443: i/o timeout\n',
    ),
    (
        "Go, net/http",
        "connection-refused",
        "RETRY_HERE",
        'docker: Error response from daemon: Get "https://registry.local/v2/": net/http: TLS handshake timeout.\n',
    ),
    (
        "git, remote-curl",
        "service-unavailable",
        "RETRY_HERE",
        "fatal: unable to access 'https://git.local/a/b.git/': The requested URL returned error: 503\n",
    ),
    (
        "pypa/pip, urllib3's Retry",
        "name-resolution",
        "RETRY_HERE",
        "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after co"
        "nnection broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object a"
        "t 0x7f>: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')"
        "': /simple/einops/\n"
        "ERROR: Could not find a version that satisfies the requirement einops (from versions: none)\n"
        "ERROR: No matching distribution found for einops\n",
    ),
    (
        "pypa/pip, package_finder.py",
        "python-import",
        "FAIL",
        "ERROR: Could not find a version that satisfies the requirement flash-attn==2.9.9 (from versions:"
        " 0.2.4, 2.6.3)\n"
        "ERROR: No matching distribution found for flash-attn==2.9.9\n",
    ),
    (
        "Linux, ENFILE",
        "node-files",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "OSError: [Errno 23] Too many open files in system: '/data/train/0001.bin'\n",
    ),
    (
        "grpc/grpc, _channel.py",
        "connection-refused",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n"
        "\tstatus = StatusCode.UNAVAILABLE\n"
        '\tdetails = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.5:8476: Failed '
        'to connect to remote host: Connection refused"\n'
        '\tdebug_error_string = "UNKNOWN:Error received from peer  {grpc_message:"failed to connect to all'
        ' addresses", grpc_status:14}"\n'
        ">\n",
    ),
    (
        "grpc/grpc, c-ares",
        "name-resolution",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: DNS resolution failed for trainer-0.svc:1234:"
        " C-ares status is not ARES_SUCCESS qtype=A name=trainer-0.svc is_balancer=0: Domain name not fou"
        "nd\n",
    ),
    (
        "jax-ml/jax, GetKeyValue",
        "jax-peer-gone",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Getting local topologies failed: GetKeyValue() "
        "timed out with key: cuda:local_topology/cuda/1 and duration: 2m\n",
    ),
    (
        "jax-ml/jax, XLA:TPU",
        "cuda-out-of-memory",
        "FAIL",
        "Traceback (most recent call last):\n"
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran o"
        "ut of memory in memory space hbm. Used 17.52G of 15.48G hbm. Exceeded hbm capacity by 2.04G.\n",
    ),
    (
        "tensorflow/tensorflow, collective ops",
        "tensorflow-peer-gone",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "tensorflow.python.framework.errors_impl.UnavailableError: Collective ops is aborted by: Socket c"
        "losed\n"
        "The error could be from a previous operation. Restart your program to reset. [Op:CollectiveReduc"
        "eV2]\n",
    ),
    (
        "ray-project/ray, gcs_rpc_client.h",
        "connection-refused",
        "RETRY_HERE",
        "[2024-05-10 03:11:22,100 E 812 812] gcs_rpc_client.h:179: Failed to connect to GCS at address 10"
        ".0.0.1:6379 within 5 seconds.\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: Failed to connect to GCS.\n",
    ),
    (
        "SchedMD/slurm, srun",
        "connection-refused",
        "RETRY_HERE",
        "srun: error: Task launch for StepId=812.0 failed on node n3: Communication connection failure\n"
        "srun: error: Application launch failed: Communication connection failure\n",
    ),
    (
        "SchedMD/slurm, slurmstepd",
        "memory-limit",
        "FAIL",
        "slurmstepd: error: Job 812 exceeded memory limit (67381932 > 67108864), being killed\n"
        "slurmstepd: error: Exceeded job memory limit\n",
    ),
    (
        "Python, subprocess",
        "segfault",
        "FAIL",
        "Traceback (most recent call last):\n"
        "subprocess.CalledProcessError: Command '['/usr/bin/python', 'train.py']' died with <Signals.SIGS"
        "EGV: 11>.\n",
    ),
    (
        "Python, subprocess, SIGTERM",
        "keyboard-interrupt",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "subprocess.CalledProcessError: Command '['/usr/bin/python', 'train.py']' died with <Signals.SIGT"
        "ERM: 15>.\n",
    ),
    (
        "pytorch/pytorch, DataLoader.cpp",
        "segfault",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: DataLoader worker (pid 41213) is killed by signal: Segmentation fault. \n",
    ),
    (
        "pytorch/pytorch, CUDAMallocAsyncAllocator.cpp",
        "cuda-out-of-memory",
        "FAIL",
        "Traceback (most recent call last):\n"
        "torch.OutOfMemoryError: Allocation on device 1 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 21.87 GiB\n"
        "Requested               : 1.25 GiB\n"
        "Device limit            : 23.99 GiB\n",
    ),
    (
        "apache/arrow, memory_pool.cc",
        "host-out-of-memory",
        "FAIL",
        "Traceback (most recent call last):\npyarrow.lib.ArrowMemoryError: malloc of size 8589934592 failed\n",
    ),
    (
        "openucx/ucx, mm_posix.c",
        "shared-memory-full",
        "FAIL",
        "[1672743521.813] [n3:5511:0]       mm_posix.c:206  UCX  ERROR   Not enough memory to write total"
        " of 4292720 bytes. Please check that /dev/shm or the directory you specified has more available "
        "memory.\n",
    ),
    (
        "open-mpi/ompi, help-opal-shmem-mmap.txt",
        "shared-memory-full",
        "FAIL",
        "--------------------------------------------------------------------------\n"
        "It appears as if there is not enough space for /dev/shm/vader_segment.n3.1000.5f.1 (the shared-m"
        "emory backing\n"
        "file). It is likely that your MPI job will now either abort or experience\n"
        "performance degradation.\n"
        "\n"
        "  Local host:  n3\n"
        "  Space Requested: 4194312 B\n"
        "  Space Available: 3866624 B\n"
        "--------------------------------------------------------------------------\n",
    ),
    (
        "Java, OutOfMemoryError",
        "host-out-of-memory",
        "FAIL",
        'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\n'
        "\tat java.util.Arrays.copyOf(Arrays.java:3332)\n",
    ),
    (
        "bash",
        "command-not-found",
        "FAIL",
        "bash: ./train.sh: /usr/bin/python3.9: bad interpreter: No such file or directory\n",
    ),
    (
        "ROCm/MIOpen",
        "miopen",
        "FAIL",
        "MIOpen Error: /long_pathname/src/ocl/convolutionocl.cpp:534: No suitable algorithm was found to "
        "execute the required convolution\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: miopenStatusInternalError\n",
    ),
    (
        "openucx/ucx, ib_iface.c",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "[n3:5511:0:5511]  ib_iface.c:1000 UCX  ERROR ibv_create_ah(dlid=49152 sl=0 port=1 src_path_bits="
        "0 dgid=::ffff:10.0.0.2) failed: Network is unreachable\n",
    ),
    (
        "mindspore-ai/mindspore, ascend_memory",
        "npu-out-of-memory",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: \n"
        "----------------------------------------------------\n"
        "- Memory not enough:\n"
        "----------------------------------------------------\n"
        "Device(id:1) memory isn't enough and alloc failed, kernel name: Default/Mul-op1, alloc size: 214"
        "7483648B.\n",
    ),
    (
        "awslabs/s3-connector-for-pytorch",
        "service-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "s3torchconnectorclient._mountpoint_s3_client.S3Exception: Client error: Unknown response error: "
        'MetaRequestResult { response_status: 503, crt_error: Error(14342, "aws-c-s3: AWS_ERROR_S3_SLOW_D'
        'OWN, Response code indicates throttling") }\n',
    ),
    (
        "Azure/azure-core",
        "service-unavailable",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "azure.core.exceptions.HttpResponseError: Operation returned an invalid status 'Service Unavailab"
        "le'\n",
    ),
    (
        "redis/redis-py",
        "connection-refused",
        "RETRY_HERE",
        "Traceback (most recent call last):\nredis.exceptions.TimeoutError: Timeout connecting to server\n",
    ),
    (
        "mongodb/mongo-python-driver",
        "connection-refused",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "pymongo.errors.ServerSelectionTimeoutError: db:27017: timed out (configured timeouts: socketTime"
        "outMS: 20000.0ms), Timeout: 30s\n",
    ),
    (
        "ray-project/ray, ray start",
        "address-in-use",
        "RETRY_HERE",
        "Traceback (most recent call last):\n"
        "ConnectionError: Ray is trying to start at 10.0.0.1:6379, but is already running at 10.0.0.9:637"
        "9. Please specify a different port using the `--port` flag of `ray start` command.\n",
    ),
    (
        "musl, ldso",
        "shared-library",
        "FAIL",
        "Error loading shared library libgomp.so.1: No such file or directory (needed by /app/train)\n",
    ),
    (
        "Python, tarfile",
        "corrupt-checkpoint",
        "FAIL",
        "Traceback (most recent call last):\ntarfile.ReadError: unexpected end of data\n",
    ),
    (
        "pytorch/pytorch, default_planner.py",
        "checkpoint-mismatch",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: Missing key in checkpoint state_dict: optimizer.state.exp_avg.\n",
    ),
    (
        "facebookresearch/fairseq, dynamic_loss_scaler.py",
        "loss-scale",
        "FAIL",
        "Traceback (most recent call last):\n"
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lo"
        "wering the learning rate, using gradient clipping or increasing the batch size.\n",
    ),
    (
        "pytorch/pytorch, anomaly mode",
        "loss-not-finite",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.\n",
    ),
    (
        "pytorch/pytorch, cudnn",
        "cudnn",
        "FAIL",
        "Traceback (most recent call last):\n"
        "RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0) but found r"
        "untime version (8, 9, 7). PyTorch already comes bundled with cuDNN.\n",
    ),
    (
        "aws/aws-cli",
        "service-unavailable",
        "RETRY_HERE",
        'fatal error: Could not connect to the endpoint URL: "https://b.s3.us-east-1.amazonaws.com/?list-type=2"\n',
    ),
    ("aws/aws-cli, credentials", "store-refused", "FAIL", "fatal error: Unable to locate credentials\n"),
    ("GoogleCloudPlatform/gsutil", "service-unavailable", "RETRY_HERE", "ServiceException: 503 Backend Error\n"),
    ("curl", "connection-refused", "RETRY_HERE", "curl: (52) Empty reply from server\n"),
    (
        "dpkp/kafka-python",
        "connection-refused",
        "RETRY_HERE",
        "Traceback (most recent call last):\nkafka.errors.NoBrokersAvailable: NoBrokersAvailable\n",
    ),
    (
        "SchedMD/slurm, time limit",
        "slurm-time-limit",
        "FAIL",
        "slurmstepd: error: *** JOB 812 ON n1 CANCELLED AT 2024-05-10T03:11:22 DUE TO TIME LIMIT ***\n",
    ),
    (
        "pytorch/pytorch, CUDAFunctions.cpp",
        "cuda-driver-missing",
        "RETRY_ELSEWHERE",
        "Traceback (most recent call last):\n"
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a "
        "driver from http://www.nvidia.com/Download/index.aspx\n",
    ),
    (
        "Rust, std::io::Error",
        "address-in-use",
        "RETRY_HERE",
        "thread 'main' panicked at src/main.rs:9:10:\n"
        'called `Result::unwrap()` on an `Err` value: Os { code: 98, kind: AddrInUse, message: "Address already in '
        'use" }\n',
    ),
    ("glibc, malloc.c", "heap-corruption", "FAIL", "corrupted double-linked list\n"),
    (
        "Python, faulthandler",
        "bus-error",
        "FAIL",
        'Fatal Python error: Bus error\n\nThread 0x00007f (most recent call first):\n  File "/x/np.py", line 3\n',
    ),
    (
        "Open MPI users 2009, PSM",
        "nccl-ib",
        "RETRY_ELSEWHERE",
        "nyx0818.28120ipath_wait_for_device: The /dev/ipath device failed to appear after 30.0 seconds: Connection "
        "timed out\n",
    ),
]
ROOTS = [one for one in FAILURES if one[1] in {row.id for row in builtin().signatures if row.role == "root"}]


def known(folder: Path, outputs: list[str]) -> Facts:
    """Of a job whose ranks wrote this and exited with code 1, rank 0 first."""
    signs: list[Sign] = []
    for number, text in enumerate(outputs):
        log = RankLogFile(number, folder / f"{number}.txt", folder / f"{number}.idx")
        log.path.write_text(text)
        signs += log_signs.search_file(Wanted(number, log), builtin()).signs
    ends = (rank(number, Outcome.EXITED, code=1) for number in range(len(outputs)))
    return facts(*ends, signs=tuple(signs), verdict=EARLY)


def names(rows: list[tuple[str, str, str, str]]) -> list[str]:
    return [f"{source}: {signature}" for source, signature, _, _ in rows]


@pytest.mark.parametrize(("_source", "signature", "action", "text"), FAILURES, ids=names(FAILURES))
def test_it_is_recognized(_source: str, signature: str, action: str, text: str, tmp_path: Path) -> None:
    found = known(tmp_path, [text])
    assert causes(found)[0].signature == signature
    assert advise(found, causes(found)).action == action


@pytest.mark.parametrize(("_source", "signature", "action", "text"), ROOTS, ids=names(ROOTS))
def test_its_rank_is_found_among_its_victims(
    _source: str, signature: str, action: str, text: str, tmp_path: Path
) -> None:
    """Rank 0 exited first, and rank 2 is the cause."""
    peer = PEERS["hccl" if signature.startswith(("cann", "hccl", "npu")) else "nccl"]
    found = known(tmp_path, [peer, peer, text, peer])
    (main, *_) = causes(found)
    assert (main.signature, main.culprit) == (signature, 2)
    assert advise(found, causes(found)).action == action


@pytest.mark.parametrize(
    "noise",
    [
        "metrics push failed: 503 Service Unavailable, will try later\n",
        "Error: Failed to connect to wandb, continuing offline\n",
        "requests.exceptions.ConnectionError: no route to the tracker\n",
    ],
)
@pytest.mark.parametrize(("steps", "action"), [(50, "FAIL"), (1, "RETRY_HERE")])
def test_a_service_that_the_program_did_without_is_no_cause(
    noise: str, steps: int, action: str, tmp_path: Path
) -> None:
    """With much other output between it and the exception that ended the rank."""
    raised = "Traceback (most recent call last):\nRuntimeError: stack expects each tensor to be equal size\n"
    found = known(tmp_path, [noise + "step 1 loss 2.1\n" * steps + raised])
    assert advise(found, causes(found)).action == action


VICTIM = PEERS["nccl"]
RESET = "WARNING urllib3: Retrying after connection broken by 'ConnectionResetError(104, 'Connection reset by peer')'\n"
WAITED = "NET/IB : Got completion from peer 10.0.0.2 with status=12 opcode=1 len=0 vendor err 129\n"
CHECKPOINT = (
    "Traceback (most recent call last):\n"
    "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])\n"
    "Traceback (most recent call last): (RANK 2)\n"
    "PermissionError: [Errno 13] Permission denied: '/ckpt/__2_0.distcp'\n"
)


@pytest.mark.parametrize(
    ("outputs", "culprit", "action"),
    [
        ([VICTIM, RESET + "step 2\nTraceback (most recent call last):\nOSError: bad signature\n"], 1, "FAIL"),
        ([WAITED, "Traceback (most recent call last):\nKeyError: 'labels'\n"], 1, "FAIL"),
        ([WAITED, "step 2 loss 2.1\n"], 0, "RETRY_ELSEWHERE"),
        ([CHECKPOINT] * 4, 2, "FAIL"),
        (
            [VICTIM, "terminate called after throwing an instance of 'std::out_of_range'\n  what():  bad id\n"],
            1,
            "FAIL",
        ),
        ([VICTIM, "ERROR: version 3 is not supported\n"], 1, "FAIL"),
        (["ERROR: a worker died\n", "Traceback (most recent call last):\nIndexError: 7\n"], 1, "FAIL"),
        ([VICTIM, "tee: /var/log/x: Permission denied\nTraceback (most recent call last):\nKeyError: 1\n"], 1, "FAIL"),
        (["--- Logging error ---\nTraceback (most recent call last):\nFileNotFoundError: x\nstep 3\n"], 0, "FAIL"),
    ],
)
def test_who_is_the_cause_and_who_follows(outputs: list[str], culprit: int, action: str, tmp_path: Path) -> None:
    found = known(tmp_path, outputs)
    (main, *_) = causes(found)
    assert (main.culprit, advise(found, causes(found)).action) == (culprit, action)


def test_a_line_that_only_mentions_an_error_is_no_word_of_a_rank_that_ended(tmp_path: Path) -> None:
    found = known(tmp_path, [PEERS["nccl"], "- GPU is lost\n", PEERS["nccl"]])
    (main, *_) = causes(found)
    assert (main.culprit, advise(found, causes(found)).action) == (1, "FAIL")
