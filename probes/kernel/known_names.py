"""Names that several rooms know, and that are not muster's to choose: kinds of cards, their device nodes, variables of
the environment (those of muster: `marks`)."""

#: Kinds of cards. A slot is what an operator lets jobs hold on a host without cards.
NVIDIA, ASCEND, SLOT = "nvidia", "ascend", "slot"
#: What a device node is called before its number, by the kind of its card.
_NODES = {NVIDIA: "nvidia", ASCEND: "davinci"}
#: The cards of a process: for CUDA, for CANN.
CUDA_CARDS, ASCEND_CARDS = "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"
#: Makes CUDA count the cards by the bus, as the driver and with it the lease does, and not the fastest first.
CUDA_ORDER, PCI_ORDER = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
#: What tells a process its rank number: torchrun and muster, Open MPI, CANN.
RANK, MPI_RANK, RANK_ID = "RANK", "OMPI_COMM_WORLD_RANK", "RANK_ID"
RANK_NUMBERS = (RANK, MPI_RANK, RANK_ID)
#: The rank table that HCCL reads; the folder of CANN's own logs.
RANK_TABLE, ASCEND_LOGS = "RANK_TABLE_FILE", "ASCEND_PROCESS_LOG_PATH"
#: Every container of a pod of Kubernetes has it.
IN_POD = "KUBERNETES_SERVICE_HOST"
#: The PATH of a process that is given none.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def device_node(kind: str, number: int) -> str:
    """The name of a card's device node, below /dev; empty for a slot, which has none."""
    return f"{_NODES[kind]}{number}" if kind in _NODES else ""


def device_number(kind: str, name: str) -> int | None:
    """N of the name of a card's device node; None for any other device."""
    number = name.removeprefix(_NODES[kind])
    return int(number) if number != name and number.isascii() and number.isdigit() else None
