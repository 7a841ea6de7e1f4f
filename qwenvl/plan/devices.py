"""How fast GPUs compute and read, as their makers state it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """One kind of GPU.

    Attributes:
        name: as ``--device`` takes it.
        memory: in GB.
        tflops: 10^12 operations a second in dense bfloat16 products that are summed in float32. Data sheets often print
            the rate with sparsity first, which is twice this one.
        gbs: 10^9 bytes a second from its memory.
    """

    name: str
    memory: int
    tflops: float
    gbs: float


DEVICES = {
    device.name: device
    for device in (
        Device("l4", 24, 121, 300),
        Device("a10g", 24, 70, 600),
        Device("rtx4090", 24, 165.2, 1008),
        Device("rtx5090", 32, 209.5, 1792),
        Device("a100-40", 40, 312, 1555),
        Device("l40s", 48, 362, 864),
        Device("a100-80", 80, 312, 2039),
        Device("h100", 80, 989, 3350),
        Device("h200", 141, 989, 4800),
        Device("b200", 180, 2250, 8000),
    )
}
"""Nominal numbers of NVIDIA's data sheets. A step reaches a part of them: see ``REACHED``.

Of the A100, the H100 and the H200 they are those of the SXM modules, of the B200 those of one GPU of eight in an HGX or
DGX system. PCIe cards of these names are slower: give rates of your own by ``--device_tflops`` and ``--device_gbs``.
"""

REACHED = 0.4
"""The part of nominal products that a training step is taken to reach. It is an assumption, not a measurement."""
READ = 0.6
"""The same of the memory's rate, while tokens are drawn one by one."""


@dataclass(frozen=True)
class Rates:
    """What seconds are computed from.

    Attributes:
        flops: operations a second.
        bytes: read a second.
        source: where the numbers come from, for people.
    """

    flops: float
    bytes: float
    source: str


def rates_of(name: str | None, memory: float, tflops: float | None, gbs: float | None) -> tuple[Rates, str]:
    """The rates of a device, and its name. Rates that are given are taken as measured ones.

    Args:
        name: of ``DEVICES``. None for the one whose memory is nearest.
    """
    device = DEVICES[name] if name else min(DEVICES.values(), key=lambda each: abs(each.memory - memory))
    source = f"{device.name}, nominal: {device.tflops:g} TFLOP/s, of which {REACHED:.0%} are taken to be reached"
    if tflops is not None:
        source = f"{tflops:g} TFLOP/s as given"
    flops = REACHED * device.tflops if tflops is None else tflops
    read = READ * device.gbs if gbs is None else gbs
    return Rates(flops * 1e12, read * 1e9, f"{source}; {read:.0f} GB/s of memory"), device.name
