"""The system call filter of programs, as instructions of BPF (Berkeley Packet Filter) for the kernel.

It refuses what no program needs for an answer: other processes' memory, mounts, namespaces, sockets other
than local ones; memory that belongs to no process and so counts towards no limit of one; and changes of
others' priorities and limits. What is refused fails with EPERM.
"""

import os
import socket
import struct
from functools import cache
from typing import Final

from metrics.errors import NightjarError


class UnknownMachineError(NightjarError):
    """The machine's system calls have other numbers than those known here."""


# Numbers of x86-64 and of 64-bit ARM.
REFUSED: Final = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "move_mount": (429, 429), "open_tree": (428, 428),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "mount_setattr": (442, 442),
    "bpf": (321, 280), "perf_event_open": (298, 241),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "userfaultfd": (323, 282),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "io_setup": (206, 0),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "acct": (163, 89), "quotactl": (179, 60), "syslog": (103, 116),
}  # fmt: skip
OF_OTHERS: Final = {
    "sched_setaffinity": ((203, 122), (0,)), "sched_setscheduler": ((144, 119), (0,)),
    "sched_setparam": ((142, 118), (0,)), "sched_setattr": ((314, 274), (0,)),
    "setpriority": ((141, 140), (0, 1)), "ioprio_set": ((251, 30), (1,)),
}  # fmt: skip
"""Calls, and which of their arguments have to be 0: the caller itself."""
_SOCKET, _CLONE, _CLONE3, _PRLIMIT = (41, 198), (56, 220), (435, 435), (302, 261)
_ARCHITECTURES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_NEW_NAMESPACES: Final = 0x7E020080
_ALLOW, _REFUSE, _ABSENT = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38

Instruction = tuple[int, int, int, int]


@cache
def system_call_filter(machine: str = "") -> bytes:
    """The filter for a machine (default: this one); raises UnknownMachineError where there is none."""
    machine = machine or os.uname().machine
    if machine not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise UnknownMachineError(f"no system call filter for {machine} (there is one for {known})")
    column, architecture = _ARCHITECTURES[machine]
    code = [_load(4), _equal(architecture, 1, 0), _give(_REFUSE), _load(0)]
    if machine == "x86_64":
        code += [(0x35, 0, 1, 0x40000000), _give(_REFUSE)]  # the x32 numbers
    # The flags of clone3 can't be looked at: where it is absent, clone is called.
    code += _on(_CLONE3[column], [_give(_ABSENT)])
    code += _on(_SOCKET[column], [_load(16), _equal(socket.AF_UNIX, 1, 0), _give(_REFUSE), _give(_ALLOW)])
    new = (0x45, 0, 1, _NEW_NAMESPACES)
    code += _on(_CLONE[column], [_load(16), new, _give(_REFUSE), _give(_ALLOW)])
    for numbers, own in OF_OTHERS.values():
        checks = [entry for place in own for entry in (*_zero(place), _give(_REFUSE))]
        code += _on(numbers[column], [*checks, _give(_ALLOW)])
    code += _on(_PRLIMIT[column], _own_limits())
    for numbers in REFUSED.values():
        code += _on(numbers[column], [_give(_REFUSE)])
    code.append(_give(_ALLOW))
    return b"".join(struct.pack("HBBI", *entry) for entry in code)


def _own_limits() -> list[Instruction]:
    """Of prlimit: its own limits may be changed, those of others only read."""
    reads = [_load(32), _equal(0, 0, 2), _load(36), _equal(0, 1, 0)]
    return [_load(16), _equal(0, len(reads) + 1, 0), *reads, _give(_REFUSE), _give(_ALLOW)]


def _zero(place: int) -> list[Instruction]:
    """Skips the next instruction where an argument, an int, is 0."""
    return [_load(16 + 8 * place), _equal(0, 1, 0)]


def _on(number: int, then: list[Instruction]) -> list[Instruction]:
    """What a call of that number goes through, which ends with giving a verdict."""
    return [_equal(number, 0, len(then)), *then]


def _load(offset: int) -> Instruction:
    return (0x20, 0, 0, offset)


def _equal(value: int, yes: int, no: int) -> Instruction:
    """Goes ``yes`` instructions further if the loaded value is this one, else ``no``."""
    return (0x15, yes, no, value)


def _give(value: int) -> Instruction:
    return (0x06, 0, 0, value)
