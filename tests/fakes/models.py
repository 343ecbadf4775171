"""Cards as their makers sell them, as far as a driver tells about it."""

from dataclasses import dataclass

MIB = 1 << 20
#: Utilization types that an Ascend 910B answers: AICore, AICPU, CtrlCPU, HBM, its bandwidth, Vector, overall.
NPU_UTIL_TYPES = (2, 3, 4, 6, 10, 12, 13)


@dataclass(frozen=True, slots=True)
class Model:
    """Memory in MiB (`reserved`: what the driver keeps for itself), power in watts, clocks in MHz.

    `fabric`: "switch" (each card reaches each), "mesh" (a direct link to each, as far as there are links), "pairs" or
    "none"; NVLinks of version 5 count their bytes in other fields. `chips` is how many an Ascend board has;
    `generation` 2 is that of the dcmiv2_ calls. Without ECC there are no remapped rows either.
    """

    name: str
    kind: str
    memory: int
    power: int
    idle: int
    reserved: int = 0
    sm_clock: int = 1980
    mem_clock: int = 2619
    fabric: str = "none"
    links: int = 0
    link_version: int = 4
    pcie: tuple[int, int] = (5, 16)
    ecc: bool = True
    mig: bool = False
    gpm: bool = False
    mem_temp: bool = True
    chips: int = 1
    generation: int = 1
    #: Ten times the major number of CUDA's compute capability, and the minor.
    capability: int = 90


def _nvidia(name: str, memory: int, power: int, idle: int, **more: object) -> Model:
    return Model(name, "nvidia", memory, power, idle, **more)  # type: ignore[arg-type]


def _ascend(name: str, memory: int, power: int, idle: int, **more: object) -> Model:
    return Model(name, "ascend", memory, power, idle, sm_clock=1800, mem_clock=1600, **more)  # type: ignore[arg-type]


#: By name. The first of a kind is the one that FakeCards.make takes where none is named.
MODELS = {
    model.name: model
    for model in (
        _nvidia("NVIDIA H100 80GB HBM3", 81559, 700, 70, reserved=552, fabric="switch", links=18, mig=True, gpm=True),
        _nvidia(
            "NVIDIA H200", 143771, 700, 75, reserved=585, mem_clock=3201, fabric="switch", links=18, mig=True, gpm=True
        ),
        _nvidia(
            "NVIDIA B200", 183359, 1000, 140, reserved=700, sm_clock=1965, mem_clock=3996, fabric="switch", links=18,
            link_version=5, mig=True, gpm=True, capability=100,
        ),
        _nvidia(
            "NVIDIA A100-SXM4-80GB", 81920, 400, 60, reserved=632, sm_clock=1410, mem_clock=1593, fabric="switch",
            links=12, pcie=(4, 16), mig=True, capability=80,
        ),
        _nvidia(
            "Tesla V100-SXM2-32GB", 32768, 300, 40, sm_clock=1530, mem_clock=877, fabric="mesh", links=6, pcie=(3, 16),
            capability=70,
        ),
        _nvidia(
            "NVIDIA GeForce RTX 4090", 24564, 450, 20, reserved=350, sm_clock=3105, mem_clock=10501, pcie=(4, 16),
            ecc=False, mem_temp=False, capability=89,
        ),
        _ascend("Ascend910B3", 65536, 392, 90, reserved=3400, fabric="mesh", links=7),
        _ascend("Ascend910", 65536, 350, 170, reserved=3200, fabric="switch", links=7, chips=2),
        _ascend("Ascend950", 131072, 600, 150, reserved=3400, fabric="switch", links=18, generation=2),
    )
}  # fmt: skip


def default(kind: str) -> Model:
    """The first model of a kind ("nvidia", "ascend")."""
    return next(model for model in MODELS.values() if model.kind == kind)
