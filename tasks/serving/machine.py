"""What this machine has for a server: GPUs, their free memory, and the main memory's.

GPUs are counted through NVML (the package nvidia-ml-py) where it is installed, else by their device files.
"""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

CPU = "cpu"
"""The place that servers without a GPU take in turn: two of them would share its cores."""


@dataclass(frozen=True)
class Gpu:
    """A GPU: the name that CUDA_VISIBLE_DEVICES knows it by, and its free bytes (None: nobody told)."""

    name: str
    free: int | None = None

    @property
    def place(self) -> str:
        """The name of its lock."""
        return f"gpu-{self.name}"


def locks_folder() -> Path:
    """Where the host's locks are, of all users and runs."""
    folder = Path(tempfile.gettempdir()) / "nightjar-places"
    folder.mkdir(mode=0o1777, exist_ok=True)
    with suppress(PermissionError):  # another user's; the mode given above is cut by the umask
        folder.chmod(0o1777)
    return folder


def visible_gpus() -> tuple[Gpu, ...]:
    """The GPUs that this process may use: all, or those in CUDA_VISIBLE_DEVICES."""
    found = _by_nvml()
    if found is None:
        found = tuple(Gpu(str(number)) for number in range(_device_files()))
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        return found
    by_name = {gpu.name: gpu for gpu in found}
    names = [name.strip() for name in said.split(",") if name.strip() not in ("", "-1")]
    return tuple(by_name.get(name, Gpu(name)) for name in names) if found else ()


def _by_nvml() -> tuple[Gpu, ...] | None:
    """The GPUs as the driver tells; None where the package or the driver is not there."""
    try:
        import pynvml
    except ImportError:
        return None
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        return tuple(
            Gpu(str(number), int(nvml.nvmlDeviceGetMemoryInfo(handle).free))
            for number, handle in enumerate(handles)
        )
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _device_files() -> int:
    return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))


def free_memory() -> int | None:
    """Bytes of main memory that programs can have; None where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def lacking_memory(needed: int, held: Sequence[str]) -> str | None:
    """Why weights of ``needed`` bytes don't fit into the memory of the places that are held; None: they do,
    or nobody tells how much there is."""
    gpus = [gpu for gpu in visible_gpus() if gpu.place in held]
    free = [gpu.free for gpu in gpus if gpu.free is not None]
    if gpus:
        told, where = (sum(free) if len(free) == len(gpus) else None), ", ".join(gpu.place for gpu in gpus)
    else:
        told, where = free_memory(), "the main memory"
    if told is None or needed <= told:
        return None
    return (
        f"its weights take {needed / 1e9:.2f} GB, and {where} has {told / 1e9:.2f} GB free; end what holds "
        "it, or serve the model with more GPUs"
    )


def candidates(gpus: Sequence[Gpu], wanted: int) -> tuple[tuple[str, ...], int]:
    """The places of which a server with ``wanted`` GPUs holds some, and how many of them."""
    return (tuple(gpu.place for gpu in gpus), wanted) if wanted else ((CPU,), 1)


@lru_cache(maxsize=1)
def gpu_count() -> int:
    """How many GPUs this process may use; asked once."""
    return len(visible_gpus())
