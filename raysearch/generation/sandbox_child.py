"""The process that runs one program; `raysearch.generation.sandbox` starts it as a script, and nothing imports it.

It takes everything away from itself, then runs the program. By the kernel: limits of processor time, memory and files;
no other process may be made, signalled or read; no socket. Where the kernel allows namespaces, all of the disk is
read-only but a scratch folder in memory, and there is no network; elsewhere no file can be opened for writing.

A program shares the interpreter with what runs it, so one that looks for its own verdict there can find that; it harms
nothing else.

It starts in some hundredths of a second, so it imports little, and nothing of ours.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
import sys

TYPE_CHECKING = False  # typing alone would take as long to import as all the rest
if TYPE_CHECKING:
    from typing import Any

#: System calls by machine: (x86_64, aarch64); -1 where a machine has none of that name. These act beyond the process.
_BEYOND = {
    **{"fork": (57, -1), "vfork": (58, -1), "clone": (56, 220), "execve": (59, 221), "execveat": (322, 281)},
    **{"socket": (41, 198), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426)},
    **{"kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240)},
    **{"pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438)},
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272)},
    **{"process_madvise": (440, 440), "setsid": (112, 157), "setpgid": (109, 154), "setrlimit": (160, 164)},
    **{"setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118), "sched_setattr": (314, 274)},
    **{"sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122), "migrate_pages": (256, 238)},
    **{"move_pages": (279, 239), "personality": (135, 92), "mount": (165, 40), "umount2": (166, 39)},
    **{"pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268)},
    **{"open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432)},
    **{"mount_setattr": (442, 442), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282)},
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    # Memory that no limit of a process counts.
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196)},
    **{"msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180)},
}

#: Those that change files, refused where the disk cannot be made read-only.
_WRITING = {
    **{"openat2": (437, 437), "creat": (85, -1), "mkdir": (83, -1), "mkdirat": (258, 34), "rmdir": (84, -1)},
    **{"rename": (82, -1), "renameat": (264, 38), "renameat2": (316, 276), "link": (86, -1), "linkat": (265, 37)},
    **{"symlink": (88, -1), "symlinkat": (266, 36), "unlink": (87, -1), "unlinkat": (263, 35), "mknod": (133, -1)},
    **{"mknodat": (259, 33), "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452)},
    **{"chown": (92, -1), "lchown": (94, -1), "fchown": (93, 55), "fchownat": (260, 54), "truncate": (76, 45)},
    **{"ftruncate": (77, 46), "fallocate": (285, 47), "utime": (132, -1), "utimes": (235, -1)},
    **{"futimesat": (261, -1), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6)},
    **{"fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16)},
}
_CLONE3, _TGKILL, _PRLIMIT64, _OPEN, _OPENAT = (435, 435), (234, 131), (302, 261), (2, -1), (257, 56)
_LAST_KNOWN = 462  # what a later kernel adds is refused
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def main() -> None:
    """Run the program that stands in standard input, and report how it ended: by the token only if its tests did."""
    result, write, leave, run = int(sys.argv[1]), os.write, os._exit, exec  # a program may put others in their places
    try:
        code, tests, token = _enter(result)
    except BaseException as error:
        write(result, f"sandbox\0{error}".encode())
        leave(1)
    stage = "parse"
    try:
        compile(code, "<code>", "exec", dont_inherit=True)
        stage = "run"
        run(compile(f"{code}\n{tests}\n", "<code>", "exec", dont_inherit=True), {})
        report = token
    except BaseException as error:
        kind, message = type(error).__name__, str(error)
        report = f"{stage}\0{kind[:100]}\0{message[:1000]}".encode(errors="replace")
    write(result, report)
    leave(0)


def _enter(result: int) -> tuple[str, str, bytes]:
    """Read the job, and shut the process off."""
    n_code, n_tests, cpu_s, memory, scratch, parent = map(int, sys.argv[2:8])
    folders = sys.argv[8:]
    job = b"".join(iter(lambda: os.read(0, 1 << 16), b""))
    code, tests, token = job[:n_code].decode(), job[n_code : n_code + n_tests].decode(), job[n_code + n_tests :]
    sys.argv[:] = [""]
    sys.path += folders
    _shut_off(cpu_s, memory, scratch, parent)
    os.write(result, b"\n")  # what is reported from here on may be the program's doing
    return code, tests, token


def _shut_off(cpu_s: int, memory: int, scratch: int, parent: int) -> None:
    """Give up, for good, all that reaches beyond this process; sizes in bytes."""
    libc = ctypes.CDLL(None, use_errno=True)
    _call(libc.prctl(1, 9, 0, 0, 0), "to die with its starter")
    if os.getppid() != parent:
        os._exit(1)
    read_only = _enter_namespaces(libc, scratch)
    for limit, soft, hard in (
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, scratch, scratch),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_NPROC, 1, 1),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(limit, (soft, hard))
    none = (ctypes.c_uint32 * 6)()
    _call(libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), none), "to give up what root may do")
    _call(libc.prctl(38, 1, 0, 0, 0), "to gain nothing by a program's owner")  # PR_SET_NO_NEW_PRIVS
    code = b"".join(_filter(read_only))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(kept := ctypes.create_string_buffer(code)))
    _call(libc.prctl(22, 2, program, 0, 0), "a filter of system calls (seccomp)")
    del kept


def _call(result: int, what: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"the kernel refuses {what}: {os.strerror(error)}")


def _enter_namespaces(libc: Any, scratch: int) -> bool:
    """Leave network and disk; return False if the kernel does not allow it."""
    user, group, folder = os.geteuid(), os.getegid(), os.getcwd()
    if libc.unshare(0x10000000 | 0x40000000 | 0x00020000 | 0x08000000):  # user, network, mounts, IPC
        return False
    try:
        for file, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as ids:
                ids.write(line)
        _call(libc.mount(b"none", b"/", None, 0x40000 | 0x4000, None), "mounts of its own")
        attributes = struct.pack("QQQQ", 1 | 2 | 4, 0, 0, 0)  # read-only, no set-uid, no devices
        _call(libc.syscall(442, -1, b"/", 0x8000, attributes, len(attributes)), "a read-only disk")
        _call(libc.mount(b"none", b"/proc", b"tmpfs", 1, b"size=4k"), "an empty /proc")
        options = f"size={scratch},nr_inodes=1024".encode()
        _call(libc.mount(b"none", os.fsencode(folder), b"tmpfs", 2 | 4, options), "a scratch folder in memory")
        os.chdir(folder)
    except OSError:
        return False
    return True


def _filter(read_only: bool) -> list[bytes]:
    """Return the filter of system calls, as instructions of classic BPF: 8 bytes each."""
    machine = os.uname().machine
    if machine not in _MACHINES or sys.maxsize < 2**32:
        raise OSError(errno.ENOSYS, f"no filter of system calls is known for {machine}")
    column, arch = _MACHINES[machine]
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill = _bpf(give, 0x7FFF0000), _bpf(give, 0x80000000)
    refuse, unknown = _bpf(give, 0x00050000 | errno.EPERM), _bpf(give, 0x00050000 | errno.ENOSYS)

    def argument(index: int, high: bool = False) -> bytes:
        return _bpf(load, 16 + 8 * index + 4 * high)

    lines = [_bpf(load, 4), _bpf(equal, arch, 1, 0), kill]
    lines += [_bpf(load, 0), _bpf(at_least, _LAST_KNOWN + 1, 0, 1), unknown]
    lines += [_bpf(equal, _CLONE3[column], 0, 1), unknown]
    refused = _BEYOND if read_only else _BEYOND | _WRITING
    for numbers in refused.values():
        if numbers[column] >= 0:
            lines += [_bpf(equal, numbers[column], 0, 1), refuse]
    # A signal to itself, by abort(), is no harm; limits may be read.
    lines += [_bpf(equal, _TGKILL[column], 0, 4), argument(0), _bpf(equal, os.getpid(), 1, 0), refuse, allow]
    lines += [_bpf(equal, _PRLIMIT64[column], 0, 6), argument(2), _bpf(equal, 0, 1, 0), refuse]
    lines += [argument(2, high=True), _bpf(equal, 0, 1, 0), refuse]
    lines += [_bpf(load, 0)]
    if not read_only:
        changing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        for numbers, flags in ((_OPEN, 1), (_OPENAT, 2)):
            if numbers[column] >= 0:
                lines += [_bpf(equal, numbers[column], 0, 4), argument(flags), _bpf(any_bit, changing, 0, 1), refuse]
                lines += [allow]
    return [*lines, allow]


def _bpf(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


if __name__ == "__main__":
    main()
