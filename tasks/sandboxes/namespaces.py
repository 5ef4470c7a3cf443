"""Makes a sandbox of the kernel's own parts, where neither bubblewrap nor a container engine is there.

Started as a program by the interpreter alone: takes namespaces of users (unless it is root), processes,
mounts, networks and names, changes to a root with nothing in it but the folders it was given, a /proc, a few
devices and a temporary folder, and becomes ``inside.py``, whose child Landlock then keeps to the same.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 1 << 14, 1 << 18
# Flags of a mount that a remount must repeat: as statvfs and as mount number them.
REPEATED = ((2, NOSUID), (4, NODEV), (8, NOEXEC), (1024, 1024), (2048, 2048), (4096, 1 << 21))
PR_SET_PDEATHSIG = 1
DETACH = 2
NOBODY = 65_534
ROOT = "/tmp"  # where the new root is put together; the old one's is not seen from then on
DEVICES = ("null", "zero", "random", "urandom")

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """``namespaces.py INSIDE DISK_MB FOLDERS [serve]``: stdin and stdout are those of ``inside.py``."""
    inside, disk_mb, folders = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    sys.argv[1:] = sys.argv[4:]
    with open(inside) as file:  # it may lie where the new root will be
        program = compile(file.read(), inside, "exec")
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    own = os.getuid(), os.getgid()
    separate = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
    if own[0]:
        _checked(_libc.unshare(separate | NEWUSER), "a user namespace")
        for name, text in (
            ("setgroups", "deny"), ("uid_map", f"{NOBODY} {own[0]} 1"), ("gid_map", f"{NOBODY} {own[1]} 1"),
        ):  # fmt: skip
            with open(f"/proc/self/{name}", "w") as map_file:
                map_file.write(text)
    else:
        _checked(_libc.unshare(separate), "namespaces")
    first = os.fork()
    if first:
        _, status = os.waitpid(first, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _change_root(folders, disk_mb)
    exec(program, {"__name__": "__main__", "__file__": inside})


def _change_root(folders: list[str], disk_mb: int) -> None:
    _mount(None, "/", None, REC | PRIVATE)
    links = {name: os.readlink(name) for name in folders if os.path.islink(name)}
    wanted = [name for name in folders if name not in links] + [f"/dev/{name}" for name in DEVICES]
    opened = {name: os.open(name, os.O_PATH) for name in wanted if os.path.exists(name)}
    _mount("tmpfs", ROOT, "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
    for name, fd in opened.items():
        target = ROOT + name
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        device = name.startswith("/dev/")
        if device:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o666))
        else:
            os.makedirs(target, mode=0o755, exist_ok=True)
        _mount(f"/proc/self/fd/{fd}", target, None, BIND | (0 if device else REC))
        if not device:
            held = os.statvfs(target).f_flag
            kept = sum(flag for seen, flag in REPEATED if held & seen)
            _mount(None, target, None, BIND | REMOUNT | RDONLY | NOSUID | kept)
        os.close(fd)
    for name, aim in links.items():
        os.makedirs(os.path.dirname(ROOT + name), mode=0o755, exist_ok=True)
        os.symlink(aim, ROOT + name)
    os.mkdir(f"{ROOT}/dev/shm")
    _mount("tmpfs", f"{ROOT}/dev/shm", "tmpfs", NOSUID | NODEV, "size=16m,mode=1777")
    os.mkdir(f"{ROOT}/proc")
    _mount("proc", f"{ROOT}/proc", "proc", NOSUID | NODEV | NOEXEC)
    os.mkdir(f"{ROOT}/tmp")
    _mount("tmpfs", f"{ROOT}/tmp", "tmpfs", NOSUID | NODEV, f"size={disk_mb}m,mode=1777")
    os.chdir(ROOT)
    call = _libc.syscall(155 if os.uname().machine == "x86_64" else 41, b".", b".")
    _checked(call, "another root")
    _checked(_libc.umount2(b".", DETACH), "way to leave the old root")
    os.chdir("/")
    _mount(None, "/", None, REMOUNT | RDONLY | NOSUID | NODEV, "size=1m,mode=755")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if part is None else part.encode() for part in (source, target, kind, data)]
    done = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _checked(done, f"mount at {target}")


def _checked(result: int, what: str) -> None:
    if result:
        sys.exit(f"the kernel gives no {what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
