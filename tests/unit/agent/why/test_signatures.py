"""Signatures: what they find in output as it really looks, hostile output, and an operator's own files."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.agent.why import signatures
from muster.agent.why.causes.sign_words import VAGUE
from muster.agent.why.signature_patterns import MAX_WAYS, BadPattern, read
from muster.agent.why.signatures import Hit, Scan

#: What torch_npu raises when a stream fails, and the line that it writes then.
SYNCHRONIZE = (
    "RuntimeError: synchronize:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:361 NPU function error: "
    "c10_npu::acl::AclrtSynchronizeStreamWithTimeout(stream()), error code is {}\n"
)
ERR = "(PID:17096, Device:5, RankID:5) ERR00100 PTA call acl api failed"
#: The signature that is to be taken for the reason, and output of a failing rank: the root of the highest priority, or
#: what follows from another's failure.
SAMPLES = [
    # facebookresearch/detectron2#2848, ErlerPhilipp/points2surf#17, LiuHC0428/LAW-GPT#33, NVIDIA/nvidia-docker#1730
    (
        "cuda-init",
        "    torch._C._cuda_init()\nRuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.\n",
    ),
    (
        "cuda-init",
        "    torch._C._cuda_init()\nRuntimeError: CUDA unknown error - this may be due to an incorrectly set up "
        "environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start. Setting the available "
        "devices "
        "to be zero.\n",
    ),
    ("cuda-init", "Failed to initialize NVML: Unknown Error\n"),
    # aws/sagemaker-mxnet-inference-toolkit#112, xorbitsai/inference#883
    (
        "cuda-driver-missing",
        "    self._handle = _dlopen(self._name, mode)\n"
        "OSError: libcuda.so.1: cannot open shared object file: No such file or directory\n",
    ),
    ("cuda-driver-missing", "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory\n"),
    # NVIDIA-AI-Blueprints/video-search-and-summarization#70, apecloud/ApeRAG#120
    (
        "cuda-mps",
        "RuntimeError: Unexpected error from cudaGetDeviceCount()\n"
        "Error 807: MPS server is not ready to accept new MPS client requests\n",
    ),
    (
        "cuda-mps",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
        "NumCudaDevices() that might have already set an error? Error 805: MPS client failed to connect to the MPS "
        "control "
        "daemon or the MPS server\n",
    ),
    # NVIDIA/nccl#1788, pytorch/ao#3841
    (
        "nccl-nvls",
        "[2025-07-21 19:05:29] node004:27907:27907 [1] transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation "
        "cannot be performed in the present state'\nnode004:27907:27907 [1] NCCL INFO transport/nvls.cc:409 -> 1\n",
    ),
    ("nccl-nvls", "Failed to bind NVLink SHARP (NVLS) Multicast memory: CUDA error 401\n"),
    # modelscope/ms-swift#9443, NVIDIA/nccl#296
    (
        "collective-mismatch",
        "[rank1]: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3104, OpType=ALLREDUCE, TensorShape=[195812480], "
        "TensorDtypes=BFloat16), but "
        "Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=3104, OpType=ALLREDUCE, "
        "TensorShape=[51123456]).Collectives differ in the following aspects:   Tensor Tensor shapes: 195812480vs "
        "51123456\n",
    ),
    (
        "collective-mismatch",
        "init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around "
        "rank 39. "
        "You can use NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=COLL to see the collective logs\n",
    ),
    # NVIDIA/nccl#1589
    (
        "nccl-shm-attach",
        "g148:14937:69361 [0] misc/shmutils.cc:93 NCCL WARN Call to open failed: No such file or directory\n\n"
        "g148:14937:69361 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment "
        "/dev/shm/nccl-glnlGK (size 14156128), error: No such file or directory (2)\n",
    ),
    # facebookresearch/metaseq#52
    (
        "rendezvous-incomplete",
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 4330, for key: "
        "store_based_barrier_key:522 (world_size=2048, worker_count=1792, timeout=0:30:00)\n",
    ),
    # NVIDIA/nccl#1920
    (
        "nccl-peer-gone",
        "[2025-11-24 11:20:21] gpu-server320 [5] misc/socket.cc:46 NCCL WARN socketProgressOpt: Call to send to "
        "10.44.137.149<52905> failed : Connection reset by peer\n",
    ),
    # garyexplains/examples#13, horovod/horovod#1950
    (
        "mpi-peer-gone",
        "--------------------------------------------------------------------------\n"
        "ORTE has lost communication with a remote daemon.\n\n"
        "  HNP daemon   : [[64112,0],0] on node wmaster-desktop\n  Remote daemon: [[64112,0],1] on node 10.126.10.10\n",
    ),
    (
        "mpi-peer-gone",
        "An MPI communication peer process has unexpectedly disconnected.  This\n"
        "usually indicates a failure in the peer process (e.g., a crash or\n"
        "otherwise exiting without calling MPI_FINALIZE first).\n",
    ),
    # horovod/horovod#1421, horovod/horovod#243
    (
        "horovod-peer-gone",
        "tensorflow.python.framework.errors_impl.UnknownError: Horovod has been shut down. This was caused by an "
        "exception "
        "on one of the ranks or an attempt to allreduce, allgather or broadcast a tensor after one of the ranks "
        "finished "
        "execution.\n",
    ),
    # ymcui/Chinese-LLaMA-Alpaca#534
    (
        "loss-scale",
        "Traceback (most recent call last):\n"
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n",
    ),
    # JIA-Lab-research/MGM#91, deepspeedai/DeepSpeed#1077, deepspeedai/DeepSpeed#694
    (
        "extension-build",
        "deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA version "
        "12.2 does "
        "not match the version torch was compiled with 11.7, unable to compile cuda/cpp extensions without a "
        "matching cuda "
        "version.\n",
    ),
    (
        "extension-build",
        "Exception: Installed CUDA version 11.0 does not match the version torch was compiled with 10.1, unable to "
        "compile "
        "cuda/cpp extensions without a matching cuda version.\n",
    ),
    ("extension-build", "RuntimeError: Error building extension 'fused_adam'\n"),
    # deepspeedai/DeepSpeed#3823, deepspeedai/DeepSpeed#3232
    (
        "killed",
        "[2023-04-14 13:11:27,879] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 13266\n"
        "[2023-04-14 13:11:27,885] [ERROR] [launch.py:434:sigkill_handler] ['/usr/bin/python3', '-u', 'main.py', "
        "'--local_rank=0'] exits with return code = -9\n",
    ),
    # mindspore-lab/mindone#465
    (
        "npu-out-of-memory",
        "    self.stub_shape = self.stub.get_shape()\n"
        "RuntimeError: Malloc for kernel output failed, Memory isn't enough, node:Default/Cast-op446\n",
    ),
    # Ascend/samples#21, PaddlePaddle/PaddleCustomDevice#706, bitsandbytes-foundation/bitsandbytes#1695
    ("cann-driver", "aclrtSetDevice: open device 0 failed, runtime result = 507033.\n"),
    (
        "cann-aicore",
        "Call aclrtSynchronizeStream(reinterpret_cast<aclrtStream>(stream)) failed : 507015 at file "
        "/workspace/PaddleCustomDevice/backends/npu/runtime/runtime.cc line 408\n",
    ),
    (
        "cann-aicore",
        "EH9999: Inner Error!\n        rtDeviceSynchronizeWithTimeout execute failed, reason=[vector core exception]"
        "[FUNC:FuncErrorReason][FILE:error_message_manage.cc][LINE:53]\n",
    ),
    # container2wasm/container2wasm#239
    (
        "setuid-program",
        'sudo: The "no new privileges" flag is set, which prevents sudo from running as root.\n'
        "sudo: If sudo is running in a container, you may need to adjust the container configuration to disable the "
        "flag.\n",
    ),
    # facebookresearch/mmf#441
    (
        "shared-memory-full",
        "2020-08-03T10:20:25 | mmf.utils.general: Starting training...\n"
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory "
        "(shm).\n",
    ),
    (
        "cuda-out-of-memory",
        'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\n    main()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB "
        "of which 1.12 GiB is free. Process 4711 has 78.02 GiB memory in use.\n",
    ),
    (
        "cuda-out-of-memory",
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB total capacity)\n",
    ),
    ("cuda-out-of-memory", "node1:812:940 [2] enqueue.cc:711 NCCL WARN Cuda failure 2 'out of memory'\n"),
    (
        "npu-out-of-memory",
        "torch.OutOfMemoryError: NPU out of memory. Tried to allocate 72.00 MiB (NPU 0; 61.27 GiB total capacity)\n",
    ),
    (
        "npu-out-of-memory",
        "EL0004: [PID: 812] 2026-03-02-10:00:00.000.001 Failed to allocate memory requested by FE module.\n"
        "        Possible Cause: Available memory is insufficient.\n",
    ),
    (
        "host-out-of-memory",
        "Traceback (most recent call last):\nOSError: [Errno 12] Cannot allocate memory\n",
    ),
    ("host-out-of-memory", "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  a\n"),
    (
        "shared-memory-full",
        "RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit.\n",
    ),
    (
        "oom-killed-child",
        "Traceback (most recent call last):\nRuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. \n"
        "\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
        "RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly\n",
    ),
    (
        "cuda-device-assert",
        "../aten/src/ATen/native/cuda/Loss.cu:242: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: "
        "[3,0,0] Assertion `t >= 0 && t < n_classes` failed.\nTraceback (most recent call last):\n"
        "RuntimeError: CUDA error: device-side assert triggered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call\n",
    ),
    ("cuda-illegal-access", "RuntimeError: CUDA error: an illegal memory access was encountered\n"),
    (
        "cuda-illegal-access",
        "Traceback (most recent call last):\n"
        "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMisalignedAddress: misaligned address\n"
        "Exception ignored in: 'cupy.cuda.function.Module.__dealloc__'\n"
        "cupy_backends.cuda.api.driver.CUDADriverError: CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address\n",
    ),
    ("cuda-launch-failure", "RuntimeError: CUDA error: unspecified launch failure\n"),
    ("cuda-ecc", "RuntimeError: CUDA error: uncorrectable ECC error encountered\nCompile with `TORCH_USE_CUDA_DSA`\n"),
    ("cuda-device-lost", "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot it\n"),
    ("xid", "[ 1234.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off\n"),
    ("cuda-no-device", "RuntimeError: No CUDA GPUs are available\n"),
    ("cuda-no-device", "RuntimeError: CUDA error: no CUDA-capable device is detected\n"),
    ("cuda-driver-too-old", "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).\n"),
    ("cuda-driver-too-old", "CUDA driver version is insufficient for CUDA runtime version\n"),
    ("cuda-wrong-architecture", "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"),
    ("cuda-fabric", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet\n"),
    ("cublas", "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa)`\n"),
    ("cudnn", "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED\n"),
    (
        "nccl-timeout",
        "[rank3]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) "
        "ran for 600060 milliseconds before timing out.\n"
        "[rank3]:[E321 02:07:08.9 ProcessGroupNCCL.cpp:621] [Rank 3] Some NCCL operations have failed or timed out.\n"
        "[rank3]:[E321 02:07:08.9 ProcessGroupNCCL.cpp:627] [Rank 3] To avoid data inconsistency, we are taking the "
        "entire process down.\nterminate called after throwing an instance of 'c10::DistBackendError'\n",
    ),
    (
        "nccl-peer-gone",
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, remote "
        "process exited or there was a network error, NCCL version 2.21.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n",
    ),
    ("nccl-peer-gone", "node2:2:3 [1] socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer\n"),
    (
        "nccl-ib",
        "n1:1:2 [4] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.4<415> with error 12, "
        "opcode 0, len 0, vendor err 129 (Recv) localGid ::ffff:10.0.0.3 remoteGid ::ffff:10.0.0.4 hca mlx5_1\n"
        "ncclRemoteError: A call failed possibly due to a network error\n",
    ),
    ("no-interface", "n0:71:71 [0] NCCL WARN Bootstrap : no socket interface found\n"),
    (
        "nccl-setup",
        "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] "
        "via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout\n",
    ),
    ("nccl-duplicate-gpu", "n0:1:1 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device\n"),
    (
        "nccl-system-error",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n",
    ),
    ("gloo-peer-gone", "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:342\n"),
    (
        "elastic-child-failed",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "============================================================\ntrain.py FAILED\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-21\n  rank      : 3 (local_rank: 3)\n"
        "  exitcode  : 1 (pid: 4711)\n  error_file: <N/A>\n",
    ),
    ("command-not-found", "train.sh: line 3: python3.12: command not found\n"),
    ("command-not-found", "/job/train.sh: 7: torchrun: not found\n"),
    ("command-not-found", "bash: torchrun: command not found\n"),
    ("command-not-found", "env: \u2018torchrun\u2019: No such file or directory\n"),
    (
        "rendezvous-refused",
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to "
        "(172.17.0.9, 46229).\n",
    ),
    (
        "address-in-use",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n",
    ),
    ("connection-refused", "ConnectionRefusedError: [Errno 111] Connection refused\n"),
    ("name-resolution", "socket.gaierror: [Errno -3] Temporary failure in name resolution\n"),
    (
        "hub-unreachable",
        "'(ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. \"), "
        "'(Request ID: 8)')' thrown while requesting HEAD https://huggingface.co/gpt2/resolve/main/config.json\n",
    ),
    (
        "no-interface",
        "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
        "Unable to find address for: eth7\n",
    ),
    (
        "cuda-out-of-memory",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.\n",
    ),
    (
        "checkpoint-mismatch",
        "AssertionError: num_layers value from checkpoint (32) is not equal to the input argument value (40).\n",
    ),
    (
        "cuda-no-device",
        "RuntimeError: Unable to initialize backend 'cuda': INTERNAL: no supported devices found for platform CUDA "
        "(you may need to uninstall the failing plugin package)\n",
    ),
    (
        "loss-not-finite",
        "RuntimeError: Rank 1, node host-3, device 1, iteration 1822: Unexpected result nan (message='found NaN in "
        "local forward loss calculation')\n",
    ),
    (
        "extension-build",
        "RuntimeError: Unable to JIT load the async_io op due to it not being compatible due to hardware/software "
        "issue. None\n",
    ),
    (
        "hub-load-failed",
        "OSError: Can't load tokenizer for './llama-7b'. If you were trying to load it from "
        "'https://huggingface.co/models', make sure you don't have a local directory with the same name.\n",
    ),
    (
        "hub-files-missing",
        "OSError: lama/lama-7b is not a local folder and is not a valid model identifier listed on "
        "'https://huggingface.co/models'\n",
    ),
    (
        "hub-files-missing",
        "OSError: Error no file named pytorch_model.bin, model.safetensors, tf_model.h5 found in directory ./ckpt.\n",
    ),
    (
        "hub-offline",
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and "
        "outgoing traffic has been disabled. To enable hf.co look-ups and downloads online, set ... to False.\n",
    ),
    ("hub-unreachable", "OSError: We couldn't connect to 'https://huggingface.co' to load the files\n"),
    ("wandb-network", "wandb: Network error (ConnectTimeout), entering retry loop.\n"),
    (
        "hccl-timeout",
        "[ERROR] 2025-10-11-15:09:34 (PID:2969, Device:0, RankID:101) ERR00100 PTA call acl api failed.\n"
        "EI0002: [PID: 2969] 2025-10-11-15:09:34.713.335 The wait execution of the Notify register times out. Reason: "
        "The Notify register has not received the Notify record from remote rank: [24].\n",
    ),
    (
        "hccl-timeout",
        "[ERROR]HCCL(1219039,all_reduce_test):2025-10-23-21:05:09.859.568[task_exception_handler.cc:610] [1219039]"
        "[TaskExecStage][HeartbeatAbnormal]Cluster Exception Location[IP/ID]:[127.10.0.1/1], Arrival Time:[Thu Oct 23 "
        "21:03:19 2025], ExceptionType:[Stuck Occurred], Possible Reason:1.Host process is stuck, 2.Device task is "
        "stuck\n",
    ),
    (
        "hccl-timeout",
        "[ERROR]HCCL(835695,all_reduce_test):2025-10-23-17:28:06.049.385[task_exception_handler.cc:610][835695]"
        "[TaskExecStage][HeartbeatAbnormal]Cluster Exception Location[IP/ID]:[127.10.0.1/1], Arrival Time:[Thu Oct 23 "
        "17:25:58 2025], Discoverer:[127.10.0.1/2], ExceptionType:[Heartbeat Lost Occurred], Possible Reason:1. "
        "Process has exited, 2. Network Disconnected\n",
    ),
    (
        "hccl-network",
        "[ERROR] HCCL(1,python):2025-10-23-17:28:06.049.385[task_exception_handler.cc:610][1][TaskExecStage]"
        "[HeartbeatAbnormal]Cluster Exception Location[IP/ID]:[127.10.0.1/1], Arrival Time:[Thu Oct 23 17:25:58 2025], "
        "ExceptionType:[Error cqe Occurred], Possible Reason:1.Network Disconnected, 2.Remote Rank Coredown\n",
    ),
    (
        "hccl-config",
        "[ERROR] HCCL(1,python):2025-10-23-17:28:06.049.385[task_exception_handler.cc:610][1][TaskExecStage]"
        "[HeartbeatAbnormal]Cluster Exception Location[IP/ID]:[127.10.0.1/1], Arrival Time:[Thu Oct 23 17:25:58 2025], "
        "ExceptionType:[Op Inconsistent Occurred], Possible Reason:communication operator is inconsistent\n",
    ),
    (
        "hccl-connect",
        "EI0006: 2024-08-05 Getting socket times out. Reason: Remote Rank did not send the data in time.\n",
    ),
    (
        "hccl-network",
        "[rank11]: [Rank 1] 2026-03-13-06:55:06.896.485 Execution_Error_ROCE_CQE(EI0013): An error CQE occurred during "
        "operator execution. Local information: server 10.0.0.199, device ID 3\n",
    ),
    (
        "hccl-process-left",
        "EJ0001: 2024-05-21-11:57:54.167.645 Failed to initialize the HCCP process. Reason: Maybe the last training "
        "process is running.\n        Solution: Wait for 10s after killing the last training process and try again.\n",
    ),
    ("hccl-process-left", "E30003: [PID: 9] The number of started NN processes exceeds the limit.\n"),
    ("hccl-config", "EI0004: [PID: 9] The ranktable is invalid,Reason:[The ranktable is not completed].\n"),
    (
        "cann-aicore",
        "EZ9999: Inner Error!\nEZ9999: [PID: 400307] 2024-11-11 The error from device(chipId:5, dieId:0),"
        " serial number is 20, there is an fftsplus aicore error exception, core id is 0, error code = 0\n",
    ),
    ("cann-device-memory-error", "RuntimeError: UCE ERROR.\n"),
    ("cann-aicore", "RuntimeError: ACL stream synchronize failed, error code:507035\n"),
    *(
        (name, SYNCHRONIZE.format(code) + f"[ERROR] 2026-03-25-06:14:02 {ERR}\nEE9999: Inner Error!\n")
        for name, code in [
            ("cann-device-memory-error", 507053),
            ("cann-device-memory-error", 507054),
            ("cann-device-memory-error", 507055),
            ("hccl-network", 507056),
            ("hccl-network", 507904),
            ("cann-remote-error", 507057),
            ("cann-driver", 507010),
            ("cann-driver", 507899),
            ("cann-aicore", 507014),
            ("cann-task-timeout", 507048),
            ("cann-wait-failed", 507011),
            ("cann-wait-failed", 507046),
            ("cann-aborted", 507023),
            ("cann-aicore", 507015),
            ("cann-aicpu", 507018),
            ("npu-out-of-memory", 207018),
        ]
    ),
    ("cann-inner-error", "EH9999: Inner Error!\n        rtSetDevice execute failed\n"),
    ("npu-not-usable", "ImportError: libascend_hal.so: cannot open shared object file: No such file or directory\n"),
    (
        "mindspore-cluster",
        "[WARNING] ME(162078:281473590168608,MainProcess):2025-03-10-09:40:12.444.000 "
        "[mindspore/parallel/cluster/process_entity/_api.py:318] There's worker exits with exception, kill all other "
        "workers.\n",
    ),
    (  # mindspore-lab/mindocr#615
        "cann-wait-failed",
        "[ERROR] DEVICE(2420702,fffe06ffd1e0,python):2023-11-20-15:34:32.886.561 [mindspore/ccsrc/plugin/device/ascend/"
        "hal/device/ascend_kernel_runtime.cc:761] DumpTaskExceptionInfo] Task fail infos task_id: 2, stream_id: 45, "
        "tid: 2420702, device_id: 0, retcode: 507011 ( model execute failed)\n",
    ),
    ("python-import", "Traceback (most recent call last):\nModuleNotFoundError: No module named 'flash_attn'\n"),
    ("glibc-version", "python: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by python)\n"),
    ("shared-library", "./train: error while loading shared libraries: libcudart.so: cannot open shared object\n"),
    ("exec-format", "sh: 1: ./train: Exec format error\n"),
    ("python-syntax", '  File "train.py", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'),
    ("usage", "train.py: error: unrecognized arguments: --local-rank=0\n"),
    ("no-space", "OSError: [Errno 28] No space left on device: '/data/ckpt/step100.pt'\n"),
    ("disk-quota", "OSError: [Errno 122] Disk quota exceeded: '/home/a/x'\n"),
    ("stale-handle", "OSError: [Errno 116] Stale file handle: '/nfs/data'\n"),
    ("io-error", "OSError: [Errno 5] Input/output error\n"),
    ("read-only", "OSError: [Errno 30] Read-only file system: '/data/x'\n"),
    ("file-not-found", "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'\n"),
    ("file-not-found", "python: can't open file '/x/trian.py': [Errno 2] No such file or directory\n"),
    ("permission", "PermissionError: [Errno 13] Permission denied: '/data'\n"),
    ("too-many-files", "OSError: [Errno 24] Too many open files\n"),
    ("too-many-processes", "RuntimeError: can't start new thread\n"),
    ("too-many-processes", "sh: 0: Cannot fork\n"),
    ("too-many-processes", "/data/prepare.sh: line 7: fork: Resource temporarily unavailable\n"),
    (
        "data-set-exception",
        "ValueError: Caught ValueError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"
        '  File "x.py", line 5, in f\nValueError: bad sample\n',
    ),
    ("weights-only", "_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the default\n"),
    ("corrupt-checkpoint", "RuntimeError: PytorchStreamReader failed reading zip archive: not a ZIP archive\n"),
    (
        "checkpoint-mismatch",
        "RuntimeError: Error(s) in loading state_dict for GPT:\n\tsize mismatch for wte: copying\n",
    ),
    ("segfault", "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"),
    ("segfault", "run.sh: line 3:  4711 Segmentation fault      (core dumped) python train.py\n"),
    ("killed", "run.sh: line 3:  4711 Killed                  python train.py\n"),
    ("loss-nan", "iteration 100 | lm loss: nan | grad norm: nan\n"),
    ("shape-mismatch", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x10 and 12x3)\n"),
    ("graph-break-compile", "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"),
    ("assertion", 'Traceback (most recent call last):\n  File "a.py", line 1\n    assert x\nAssertionError\n'),
    ("python-exception", "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'loss'\n"),
    ("npu-out-of-memory", "RuntimeError: Allocate memory failed. Device(id:0) memory isn't enough and alloc failed\n"),
    (
        "memlock-limit",
        "n1:1:1 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n",
    ),
    ("cuda-launch-failure", "RuntimeError: CUDA error: hardware stack error\n"),
    ("cuda-device-lost", "Traceback (most recent call last):\npynvml.NVMLError_GpuIsLost: GPU is lost\n"),
    ("cuda-device-lost", "OSError: [Errno 6] No such device or address: '/dev/nvidia3'\n"),
    (
        "cuda-nvlink",
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory\n",
    ),
    (
        "cuda-driver-mismatch",
        "pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch.\n",
    ),
    (
        "nccl-timeout",
        "[rank0]:[F1014 03:14:02.551 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 0] Terminating the "
        "process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang or watchdog timeout.\n",
    ),
    (
        "nccl-peer-gone",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:94, remote process exited or there was a network "
        "error, NCCL version 2.26.2\nLast error:\nsocketProgress: Connection closed by remote peer n3<41007>\n",
    ),
    (
        "nccl-ib",
        "n1:1:1 [0] nccl_net_ofi_rdma:1234 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 5. Error: 4113 "
        "(Unresponsive remote). Completed length: 0\n",
    ),
    (
        "nccl-setup",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
        "Last error:\nsocketPollConnect: connect to 10.0.3.17<36411> returned Connection refused, exceeded error retry "
        "count after 34 attempts\n",
    ),
    (
        "nccl-setup",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
        "Last error:\nsocketStartConnect: Connect to 172.17.0.2<41007> failed : Software caused connection abort\n",
    ),
    (
        "name-resolution",
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
        "(job-worker-0.svc, 23456). The IPv4 network addresses of (job-worker-0.svc, 23456) cannot be retrieved "
        "(gai error: -3 - Temporary failure in name resolution).\n",
    ),
    (
        "cann-driver",
        "RuntimeError: Call aclrtSetDevice failed, ret[507033]. Got device count[8] and device id[0], please check if "
        "device id is valid.\n- Ascend Error Message:\n",
    ),
    (
        "cann-runtime",
        "RuntimeError: getDevice:torch_npu/csrc/core/npu/NPUFunctions.cpp:78 NPU function error: aclrtGetDevice, error "
        "code is 107002\n",
    ),
    ("cann-aborted", "RuntimeError: FORCE STOP.\n"),
    (
        "cann-argument",
        "EE9999: Inner Error!\n        TraceBack (most recent call last):\nEZ1001: 2026-10-02-11:33:21 Get "
        "regInfo failed, "
        "The binary_info_config.json of socVersion [ascend910b] does not support opType [Foo].\n",
    ),
    ("mindspore-cluster", "RuntimeError: Failed to register and try to reconnect to the meta server.\n"),
    (
        "mindspore-cluster",
        "RuntimeError: The total number of timed out node is 1. Timed out node list is: [const vector]{1}, worker 1 is "
        "the first one timed out, please check its log.\n",
    ),
    (
        "python-import",
        "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 "
        "from PyObject\n",
    ),
    ("io-error", "OSError: [Errno 74] Bad message: '/data/x'\n"),
    ("store-unavailable", "aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected\n"),
    ("store-unavailable", "azure.core.exceptions.HttpResponseError: The server is busy.\nErrorCode:ServerBusy\n"),
    (
        "store-unavailable",
        "requests.exceptions.SSLError: HTTPSConnectionPool(host='cdn-lfs.huggingface.co', port=443): Max "
        "retries exceeded "
        "with url: /x (Caused by SSLError(SSLEOFError(8, 'EOF occurred in violation of protocol (_ssl.c:1007)')))\n",
    ),
    (
        "certificate",
        "requests.exceptions.SSLError: HTTPSConnectionPool(host='x', port=443): Max retries exceeded with "
        "url: /x (Caused "
        "by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed')))\n",
    ),
    (
        "name-resolution",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='h', port=443): Max retries exceeded "
        "with url: /x "
        "(Caused by NameResolutionError(\"Failed to resolve 'h' ([Errno -3] Temporary failure in name "
        'resolution)"))\n',
    ),
    (
        "store-unavailable",
        "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec. Please try increasing the "
        "timeout with the `init_timeout` setting\n",
    ),
    (
        "store-refused",
        "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the GetObject "
        "operation: Access "
        "Denied\n",
    ),
    ("store-refused", "botocore.exceptions.NoCredentialsError: Unable to locate credentials\n"),
    (
        "store-refused",
        "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/m\n"
        "401 Client Error. (Request ID: Root=1-66)\n",
    ),
    (
        "store-object-missing",
        "botocore.errorfactory.NoSuchKey: An error occurred (NoSuchKey) when calling the GetObject operation: The "
        "specified key does not exist.\n",
    ),
    (
        "store-object-missing",
        "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: Root=1-6)\n",
    ),
    ("rendezvous-refused", "torch.distributed.elastic.rendezvous.api.RendezvousClosedError\n"),
    ("ray-peer-gone", "ray.exceptions.NodeDiedError: Task was not retried because the node was dead.\n"),
    ("stale-handle", "TimeoutError: [Errno 110] Connection timed out: '/mnt/nfs/data/0001.tar'\n"),
    # The event types of ibv_event_type_str(3), in NCCL's src/transport/net_ib.cc.
    ("nccl-ib", "n41:28:29 [0] transport/net_ib.cc:95 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n"),
    ("nccl-ib", "n1:1:1 [0] transport/net_ib.cc:118 NCCL WARN NET/IB : Got async fatal event: device fatal\n"),
    # Ascend/pytorch#43; CANN's acl/error_codes/rt_error_codes.h has 107019 and 107020 as time-outs.
    (
        "hccl-timeout",
        "RuntimeError: npuSynchronizeDevice:torch_npu/csrc/core/npu/NPUStream.cpp:363 NPU error, error code is 107020\n"
        "EI9999: Inner Error!\nEI9999: 2024-07-03-11:28:40.419.527  The error from device(chipId:0, dieId:0), serial "
        "number is 1, hccl fftsplus task timeout occurred during task execution, stream_id:4, sq_id:4, task_id:5\n",
    ),
    ("cann-task-timeout", SYNCHRONIZE.format(107019)),
    ("hccl-process-left", f"{SYNCHRONIZE.format(507033)}EJ0001: [PID: 9] Failed to initialize the HCCP process.\n"),
    # pytorch/pytorch#69197
    (
        "rendezvous-refused",
        "    store = TCPStore(\nRuntimeError: connect() timed out. Original timeout was 60000 ms.\n",
    ),
    ("rendezvous-refused", "    self.store.get(key)\nRuntimeError: Socket Timeout\n"),
    # gloo's transport/tcp/device.cc; grpc's own text of a closed connection; JAX' coordination service.
    (
        "name-resolution",
        "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:209] rp != nullptr. Unable to "
        "resolve hostname to a (local) address\n",
    ),
    ("connection-reset", 'status = StatusCode.UNAVAILABLE\n\tdetails = "Socket closed"\n'),
    (
        "jax-peer-gone",
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Deadline Exceeded\nAdditional GRPC error information "
        "from remote target unknown_target_for_coordination_leader while calling "
        "/tensorflow.CoordinationService/RegisterTask:\n",
    ),
    # pynvml's texts of NVML_ERROR_OPERATING_SYSTEM and NVML_ERROR_RESET_REQUIRED; XLA's of a driver without a card.
    ("cuda-init", "pynvml.NVMLError_OperatingSystem: GPU access blocked by the operating system\n"),
    ("cuda-init", "cuda_driver.cc:282] failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error\n"),
    ("cuda-device-lost", "pynvml.NVMLError_ResetRequired: GPU requires reset\n"),
    ("stale-handle", "ConnectionAbortedError: [Errno 103] Software caused connection abort: '/mnt/juicefs/1.bin'\n"),
    ("io-error", "OSError: [Errno 61] No data available: '/local_nvme/shards/0007.bin'\n"),
    # Arrow's src/arrow/filesystem/s3_internal.h; fsspec; urllib; google-api-core; botocore; datasets.
    (
        "store-unavailable",
        "OSError: When reading information for key 'd/1.parquet' in bucket 'c': AWS Error NETWORK_CONNECTION during "
        "HeadObject operation: curlCode: 28, Timeout was reached\n",
    ),
    ("store-unavailable", "fsspec.exceptions.FSTimeoutError\n"),
    ("store-unavailable", "urllib.error.URLError: <urlopen error timed out>\n"),
    ("store-unavailable", "google.api_core.exceptions.RetryError: Timeout of 120.0s exceeded, last exception: 503\n"),
    ("store-unavailable", "botocore.exceptions.IncompleteReadError: 0 read, but total bytes expected is 8388608.\n"),
    ("hub-unreachable", "ConnectionError: Couldn't reach 'allenai/c4' on the Hub (LocalEntryNotFoundError)\n"),
    ("killed", "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL\n"),
    # deepspeedai/DeepSpeed#4000, deepspeedai/DeepSpeed#4510, bytedance/byteps#66, hemingkx/ChineseNMT#5
    (
        "bus-error",
        "[2023-07-20 15:45:13,980] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 3966\n"
        "[2023-07-20 15:45:13,982] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python3', '-u', 'main.py', "
        "'--local_rank=1'] exits with return code = -7\n",
    ),
    (
        "abort",
        "192.169.83.120: [2023-10-13 11:34:28,758] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python3', '-u', "
        "'main.py', '--local_rank=7'] exits with return code = -6\n",
    ),
    ("heap-corruption", "*** Error in `python': munmap_chunk(): invalid pointer: 0x00007f2d46754000 ***\n"),
    (
        "heap-corruption",
        "src/tcmalloc.cc:278] Attempt to free invalid pointer 0x7ffe44b66698 \n"
        "/pai_bootstrap.sh: line 259:   342 Aborted                 (core dumped) python main.py\n",
    ),
    # of Rust, Go, Java and Hydra
    (
        "uncaught",
        "thread '<unnamed>' panicked at src/lib.rs:12:5:\ncalled `Option::unwrap()` on a `None` value\n"
        "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
    ),
    ("uncaught", "panic: runtime error: index out of range [3] with length 3\n\ngoroutine 1 [running]:\n"),
    ("uncaught", 'Exception in thread "main" java.lang.NullPointerException: null\n\tat a.B.c(B.java:1)\n'),
    (
        "host-out-of-memory",
        'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\n\tat a.B.c(B.java:1)\n',
    ),
    ("error-line", "Error executing job with overrides: ['a=1']\nboom\n"),
    (
        "usage",
        "Could not override 'trainer.max_stepz'.\nKey 'max_stepz' is not in struct\n    full_key: trainer.max_stepz\n",
    ),
    # without a traceback
    ("exception-line", "could not go on\nRuntimeError: boom\n"),
    ("exception-line", "[rank3]: mypkg.errors.ConfigException: no such key: lr\nbye\n"),
    # what NCCL, a macro of CUDA programs, a log in JSON and one at the level INFO make of an error
    ("cuda-ecc", "n7:1:2 [0] misc/x.cc:3 NCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'\n"),
    ("cuda-ecc", "GPUassert: uncorrectable ECC error encountered kernel.cu 42\n"),
    ("cuda-ecc", '{"ts": 1, "level": "error", "msg": "CUDA error: uncorrectable ECC error encountered"}\n'),
    ("cuda-ecc", "t - INFO - [rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"),
    ("cuda-out-of-memory", "train: error: cannot go on after `CUDA out of memory. Tried to allocate 2 GiB`\n"),
    ("cuda-ecc", "ERROR: RuntimeError('CUDA error: uncorrectable ECC error encountered')\n"),
    ("segfault", "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV\n"),
]


def found(text: bytes) -> Scan:
    return signatures.scan(text, signatures.builtin(), until=time.monotonic() + 60)


def telling(scan: Scan) -> Hit:
    """As a cause is chosen among the signs of one rank: a root that is named, then what is told best."""

    def order(hit: Hit) -> tuple[int, int, int]:
        row = hit.signature
        tier = 2 if row.role == "hint" else 0 if row.role == "root" and row.priority > VAGUE else 1
        return tier, -row.priority, hit.at

    return min(scan.hits, key=order)


@pytest.mark.parametrize(("name", "text"), SAMPLES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(SAMPLES)])
@pytest.mark.parametrize("before", ["", "step 1 loss 2.31\r step 2 loss 2.30\n"])
def test_a_known_error_is_recognized(name: str, text: str, before: str) -> None:
    hit = telling(found((before + text).encode()))
    assert hit.signature.id == name
    assert hit.line


@pytest.mark.parametrize(
    "name", [name for name, text in SAMPLES if text.startswith(("torch.Out", "Module", "OSError"))]
)
def test_what_a_launcher_puts_before_a_line_does_not_hide_it(name: str) -> None:
    text = next(text for sample, text in SAMPLES if sample == name)
    prefixed = "".join(f"[rank7]: {line}\n" for line in text.splitlines())
    assert telling(found(prefixed.encode())).signature.id == name


@pytest.mark.parametrize(
    "line",
    [
        "retrying after 'CUDA error: uncorrectable ECC error encountered'",
        "INFO: watches for CUDA error: uncorrectable ECC error encountered",
        "2026-11-28 10:00:00,1 - trainer - INFO - on CUDA error: uncorrectable ECC error encountered: drain",
        '{"ts": 1, "level": "info", "msg": "watches for CUDA error: uncorrectable ECC error encountered"}',
        "fatal patterns: ['CUDA error: uncorrectable ECC error encountered', 'GPU is lost']",
        "fatal_errors: GPU is lost, fallen off the bus",
        '  "CUDA error: uncorrectable ECC error encountered": "RETRY_ELSEWHERE",',
        "# CUDA error: uncorrectable ECC error encountered: drain the node",
        "- GPU is lost",
    ],
)
def test_a_line_that_mentions_an_error_does_not_report_it(line: str) -> None:
    hits = found(f"{line}\nRuntimeError: boom\n".encode()).hits
    assert [hit.mentioned for hit in hits] == [True] * (len(hits) - 1) + [False]
    assert hits[-1].signature.id == "exception-line"


def test_an_exception_at_the_end_needs_no_traceback_and_counts_only_there() -> None:
    raised = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nmy.Error: x\n'
    assert [hit.signature.id for hit in found(raised.encode()).hits] == ["python-exception"]
    assert found(b"KeyError: 'x'\n" + b"step\n" * 300).hits == ()


def test_output_without_errors_holds_no_sign() -> None:
    text = "".join(
        f"step {i} loss {2.3 - i / 1000:.3f} | 1.2 s/it | {i} Killed pixels | saved to /data/error_log/{i}.pt\n"
        "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n"
        "UserWarning: The given NumPy array is not writable\n"
        f"epoch status=429/1000, status: 500 steps done, {i}: status code map loaded, 429 Too Many tokens\n"
        "[1690000000.1] [n3:5511:0]  ucp_worker.c:1855 UCX  INFO  ep_cfg[1]: tag(rc_mlx5/mlx5_0:1)\n"
        "n7:811:900 [0] transport/net_ib.cc:95 NCCL WARN NET/IB : mlx5_0:1 Got async event : client reregistration\n"
        for i in range(300)
    )
    assert found(text.encode()).hits == ()


def test_the_exception_is_shown_and_not_the_line_that_says_that_there_is_one() -> None:
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    raise E(1)\n'
        "my.Error: it is so\n\nDuring handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "a.py", line 5\nValueError: later\n'
    )
    assert [hit.line for hit in found(text.encode()).hits] == ["my.Error: it is so", "ValueError: later"]


def test_tracebacks_of_several_workers_in_one_output_are_kept_apart() -> None:
    text = (
        "[rank1]: Traceback (most recent call last):\n[rank0]: Traceback (most recent call last):\n"
        '[rank1]:   File "a.py", line 3, in f\n[rank0]:   File "a.py", line 9, in g\n'
        "[rank0]: RuntimeError: the other is gone\n[rank1]: KeyError: 'loss'\n"
    )
    assert [(hit.worker, hit.line) for hit in found(text.encode()).hits] == [
        (1, "KeyError: 'loss'"),
        (0, "RuntimeError: the other is gone"),
    ]


@pytest.mark.parametrize(
    ("prefix", "worker"),
    [
        ("[1,2]<stderr>:", 2),  # mpirun --tag-output, horovodrun
        ("2: ", 2),  # srun -l
        ("worker-1: ", None),  # pdsh, of DeepSpeed
        ("(RayTrainWorker pid=812, ip=10.0.0.2) ", None),
        ("2026-05-10T03:11:22.10{}Z stderr F ", None),  # a container's log
    ],
)
def test_the_exception_below_a_traceback_behind_prefixes_is_shown(prefix: str, worker: int | None) -> None:
    """Without the prefix, in which a time may differ from line to line."""
    lines = ["Traceback (most recent call last):", '  File "a.py", line 3, in f', "    g()", "KeyError: 'labels'"]
    text = "".join(f"{prefix.format(number)}{line}\n" for number, line in enumerate(lines))
    assert [(hit.signature.id, hit.line, hit.worker) for hit in found(text.encode()).hits] == [
        ("python-exception", "KeyError: 'labels'", worker)
    ]


@pytest.mark.parametrize(
    "line",
    [
        "hip_code_object.cpp:120: guarantee(false && \"hipErrorNoBinaryForGpu: Coudn't find binary for current "
        'devices!")',
        ", filename = '/gpfs/a.h5', descriptor = 31, errno = 5, error message = 'Input/output error', buf = 0x7ffd",
        'called `Result::unwrap()` on an `Err` value: Os { code: 98, kind: AddrInUse, message: "Address already in '
        'use" }',
        '\tdetails = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.5:8476: Connection refused"',
        "google.resumable_media.common.InvalidResponse: ('Request failed with status code', 503, 'Expected one of')",
    ],
)
def test_what_reports_an_error_in_quotes(line: str) -> None:
    """An assertion in C, HDF5, Rust, gRPC and an exception whose name does not end in Error."""
    (hit,) = found(f"{line}\n".encode()).hits
    assert not hit.mentioned


def test_the_exception_below_a_traceback_in_a_box_is_shown() -> None:
    text = (
        "╭───────── Traceback (most recent call last) ─────────╮\n│ /app/a.py:3 in <module>      │\n"
        "╰─────────────────────────────────────────────────────╯\nZeroDivisionError: division by zero\n"
    )
    assert [(hit.signature.id, hit.line) for hit in found(text.encode()).hits] == [
        ("python-exception", "ZeroDivisionError: division by zero")
    ]


def test_the_source_that_a_traceback_shows_is_no_error() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "a.py", line 3, in f\n    raise FileNotFoundError("No space left on device")\n'
        '[rank1]:   File "a.py", line 4, in g\n[rank1]:     raise PermissionError("x")\nKeyError: 1\n'
    )
    assert [hit.signature.id for hit in found(text.encode()).hits] == ["python-exception"]
    # Indented alone is not source.
    assert [hit.signature.id for hit in found(b"log:\n    PermissionError: x\n").hits] == ["permission"]


def test_a_traceback_that_was_cut_off_still_shows_something() -> None:
    (hit,) = found(b'Traceback (most recent call last):\n  File "a.py", line 3\n').hits
    assert hit.line == "Traceback (most recent call last):"


def test_every_place_is_the_begin_of_its_line() -> None:
    text = b"a\n100%|###| 3/3\rRuntimeError: No CUDA GPUs are available\nend\n"
    (hit,) = found(text).hits
    assert text[hit.at :].startswith(b"RuntimeError")
    assert hit.line == "RuntimeError: No CUDA GPUs are available"


def test_a_long_line_is_looked_at_where_it_matters() -> None:
    text = b"x" * 30_000 + b"RuntimeError: No CUDA GPUs are available" + b"y" * 30_000
    (hit,) = found(text).hits
    assert "No CUDA GPUs are available" in hit.line and len(hit.line) < 2000
    # What must stand at a line's begin does not, wherever the line was cut.
    assert found(b"z" * 600 + b"ModuleNotFoundErro" + b"MemoryError" + b"z" * 600).hits == ()


def test_the_table_is_reported_in_plain_words_and_needs_no_other() -> None:
    table = signatures.builtin()
    assert len({signature.id for signature in table.signatures}) == len(table.signatures) >= 60
    for signature in table.signatures:
        assert signature.cause.endswith(".") and signature.next.endswith("."), signature.id
    shown = {name for name, _ in SAMPLES}
    assert len(shown) > 55


# --- hostile output ---------------------------------------------------------------------------------------------------


def hostile() -> list[bytes]:
    table = signatures.builtin()
    literals = [pattern.literal.encode() for _, patterns in table.rows for pattern in patterns]
    return [
        b"NCCL WARN " * 7000,
        b"NCCL WARN" + b" :/" * 22_000,
        b": line 1:" + b" " * 65_000,
        b"Assertion `" + b"a" * 65_000,
        b"".join(literal + b"\n" for literal in literals * 5)[: 64 << 10],
        b"".join(literals * 5)[: 64 << 10],
        bytes(range(256)) * 256,
        b"Traceback (most recent call last):\n" * 1800,
        b"Traceback (most recent call last):\n" + b"  " * 30_000,
        b"\xff\xfe" * 32_000,
        b"\r" * 65_536,
    ]


@pytest.mark.parametrize("text", hostile(), ids=range(len(hostile())))
def test_no_output_keeps_the_search_for_long(text: bytes) -> None:
    """The bound is what each pattern may cost by its form; the time is for a machine that is very slow."""
    began = time.monotonic()
    scan = signatures.scan(text, signatures.builtin(), until=began + 50)
    assert scan.whole
    assert all(len(hit.line) < 2000 for hit in scan.hits)


def test_the_search_ends_when_its_time_is_over_and_says_so() -> None:
    ticks = iter(range(1000))
    text = b"No CUDA GPUs are available\n" * 100
    scan = signatures.scan(text, signatures.builtin(), until=10, clock=lambda: next(ticks))
    assert not scan.whole
    assert len(scan.hits) <= 10


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a+)+bbbb", "without a bound"),
        ("aaaa.*bbbb", "without a bound"),
        ("aaaa{3,}", "without a bound"),
        ("(?:aaaa){0,5}bbbb", "repeats a group"),
        ("(aaaa)\\1bbbb", "after a backslash"),
        ("(?=aaaa)bbbb", "only (...) and (?:...) are allowed"),
        ("aaaa|bbbb", "outside a group"),
        ("abc", "plain characters in a row"),
        ("[abcd]{4}x{2}", "plain characters in a row"),
        ("aaaa.{0,400}b.{0,400}c", "ways from one place"),
        ("aaaa.{0,9999}b", "at most"),
        ("aaaa[bc", "not closed"),
        ("aaaa(bc", "not closed"),
        ("aaaa)bc", "not open"),
        ("aaaa{x}", "not a repetition"),
        ("aaaa?{2}?{3}", "repeats a repetition"),
        ("*aaaa", "repeats nothing"),
        ("aaaa\\", "backslash"),
        ("aaaa\nb", "one line"),
        ("a" * 500, "characters"),
        ("", "characters"),
    ],
)
def test_a_pattern_that_could_take_long_is_none(pattern: str, why: str) -> None:
    with pytest.raises(
        BadPattern, match=why.replace("(", "\\(").replace(")", "\\)").replace(".", "\\.").replace("?", "\\?")
    ):
        read(pattern)


@pytest.mark.parametrize(
    ("pattern", "literal", "line"),
    [
        ("failed with (?:error|status) [0-9]{1,4}", "failed with ", "x failed with error 12"),
        ("^Killed", "Killed", "Killed"),
        ("a\\.b\\(c\\) done", "a.b(c) done", "a.b(c) done"),
        ("[^]a]{1,3}tail?", "tai", "bbta tai"),
        ("colou?rful", "colo", "colorful"),
    ],
)
def test_the_dialect(pattern: str, literal: str, line: str) -> None:
    if len(literal) < 4:
        with pytest.raises(BadPattern):
            read(pattern)
        return
    made = read(pattern)
    assert made.literal == literal
    assert made.regex.search(line)


def test_the_patterns_of_the_table_are_cheap() -> None:
    for _, patterns in signatures.builtin().rows:
        for pattern in patterns:
            assert read(pattern.source).literal in pattern.source.replace("\\", "")
    assert MAX_WAYS <= 5000


# --- an operator's files ----------------------------------------------------------------------------------------------

OWN = """
[[signature]]
id = "our-license-server"
kind = "network"
match = ['LICENSE-42: no seat is free']
cause = "The license server has no seat left."
next = "Ask the license team."
priority = 88
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def put(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path

    return put


def test_an_operator_adds_signatures(write: Callable[[str, str], Path]) -> None:
    table = signatures.load(write("site.toml", OWN))
    assert table.problems == ()
    text = b"Traceback (most recent call last):\nx.Error: LICENSE-42: no seat is free\n"
    scan = signatures.scan(text, table, until=time.monotonic() + 60)
    assert telling(scan).signature.id == "our-license-server"


def test_an_operator_replaces_a_signature(write: Callable[[str, str], Path]) -> None:
    folder = write("a.toml", OWN.replace("our-license-server", "no-space"))
    (row,) = [s for s in signatures.load(folder).signatures if s.id == "no-space"]
    assert row.cause == "The license server has no seat left."
    # The later file wins.
    write("b.toml", OWN.replace("our-license-server", "no-space").replace("license server has", "second file has"))
    (row,) = [s for s in signatures.load(folder).signatures if s.id == "no-space"]
    assert "second file" in row.cause


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[signature]\n", "not valid TOML"),
        ("a = " + "[" * 5000 + "]" * 5000, "is nested too deeply"),
        ("signature = 3\n", "skipped"),
        ("[[signatures]]\n", "unknown field"),
        (OWN.replace('cause = "The license server has no seat left."\n', ""), "cause"),
        (OWN.replace('"network"', '"weather"'), "kind = 'weather': must be one of job, environment, memory, "),
        (OWN.replace("LICENSE-42: no", "LICENSE.*no"), "without a bound"),
        (OWN.replace("priority = 88", "priority = 880"), "100"),
        (OWN.replace("our-license-server", "Our License"), "id"),
        (OWN + OWN, "two signatures with this id"),
        (OWN.replace("priority = 88", "prioritaet = 88"), "unknown key 'prioritaet': must be one of id, match, "),
    ],
)
def test_a_bad_file_is_reported_and_costs_nothing_else(write: Callable[[str, str], Path], text: str, told: str) -> None:
    write("bad.toml", text)
    table = signatures.load(write("good.toml", OWN.replace("our-license-server", "good-one")))
    assert len(table.problems) == 1
    assert "bad.toml" in table.problems[0] and told in table.problems[0]
    names = {signature.id for signature in table.signatures}
    assert "good-one" in names and "cuda-out-of-memory" in names


def test_a_good_signature_beside_a_bad_one_stays(write: Callable[[str, str], Path]) -> None:
    bad = OWN.replace("our-license-server", "bad-one").replace("LICENSE-42", "a+")
    table = signatures.load(write("both.toml", bad + OWN))
    assert ["bad-one" in text for text in table.problems] == [True]
    assert "our-license-server" in {signature.id for signature in table.signatures}


def test_what_cannot_be_read_is_reported(write: Callable[[str, str], Path], tmp_path: Path) -> None:
    assert signatures.load(tmp_path / "absent").problems == ()
    assert signatures.load(None).problems == ()
    (tmp_path / "x.toml").mkdir()
    write("y.toml", "#" * (signatures.MAX_FILE_BYTES + 1))
    (tmp_path / "z.toml").write_bytes(b"\xff\xfe")
    problems = signatures.load(tmp_path).problems
    assert len(problems) == 3
    file = tmp_path / "y.toml"
    assert "cannot be read" in signatures.load(file).problems[0]


def test_a_pipe_holds_nothing_up(write: Callable[[str, str], Path], tmp_path: Path) -> None:
    folder = write("b.toml", OWN)
    os.mkfifo(folder / "a.toml")
    table = signatures.load(folder)
    assert "our-license-server" in {one.id for one in table.signatures}
    assert table.problems == (f"{folder / 'a.toml'}: skipped: it is not a file",)


def test_the_example_of_the_documentation_is_good(write: Callable[[str, str], Path]) -> None:
    text = (Path(__file__).parents[4] / "docs" / "guides/signatures.md").read_text()
    example = text[text.index("[[signature]]") : text.index("```", text.index("[[signature]]"))]
    table = signatures.load(write("x.toml", "\n".join(line.strip() for line in example.splitlines())))
    assert table.problems == ()
    assert "our-license-server" in {signature.id for signature in table.signatures}
    keys = text[text.index("| `id` |") :]
    assert all(f"`{name}`" in keys for name in signatures.Signature.__struct_fields__)
