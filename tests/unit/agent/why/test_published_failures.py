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
        "gorakhargosh/watchdog#673",
        "inotify-limit",
        "FAIL",
        "Traceback (most recent call last):\n"
        '  File "inotify_c.py", line 435, in _raise_error\n'
        "OSError: [Errno 28] inotify watch limit reached\n",
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
        "cuda-launch-failure",
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
        "FAIL",
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
        "connection-refused",
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
        "host-out-of-memory",
        "FAIL",
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
        "no-space",
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
        "no-space",
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
        "oom-killed-child",
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
