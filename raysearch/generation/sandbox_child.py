"""The process that runs one program. `raysearch.generation.sandbox` starts it as a script; no module imports it.

The process gives up its permissions, then runs the program. The kernel limits processor time, memory and files. The
process can make, signal and read no other process, and open no socket. If the kernel allows namespaces, the disk is
read-only except for a scratch folder in memory, and there is no network. Otherwise no file can be opened for writing.

A program shares the interpreter with this script. So it can find the token of success and claim to pass, but it can do
no other harm.

The process starts in some hundredths of a second. So it imports few modules, and none of raysearch.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
import sys

TYPE_CHECKING = False  # importing typing would take as long as all other imports together
if TYPE_CHECKING:
    from typing import Any

#: System calls that act beyond the process: their numbers on x86_64 and on aarch64, -1 if there is none of that name.
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
    # These allocate memory that the limits of a process do not count.
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196)},
    **{"msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180)},
}

#: System calls that change files. They are refused if the disk cannot be made read-only.
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
_CLONE3 = (435, 435)
_TGKILL = (234, 131)
_PRLIMIT64 = (302, 261)
_OPEN = (2, -1)
_OPENAT = (257, 56)
_LAST_KNOWN = 462  # system calls of later kernels are refused
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def main() -> None:
    """Run the program from standard input, and report its result: the token if its tests ran to their end."""
    result = int(sys.argv[1])
    # The program may replace these functions in their modules.
    write = os.write
    leave = os._exit
    run = exec
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
        kind = type(error).__name__
        message = str(error)
        report = f"{stage}\0{kind[:100]}\0{message[:1000]}".encode(errors="replace")
    write(result, report)
    leave(0)


def _enter(result: int) -> tuple[str, str, bytes]:
    """Isolate the process, and return the code, the tests and the token of success from standard input."""
    n_code, n_tests, cpu_s, memory, scratch, parent = map(int, sys.argv[2:8])
    folders = sys.argv[8:]
    job = b"".join(iter(lambda: os.read(0, 1 << 16), b""))
    code = job[:n_code].decode()
    tests = job[n_code : n_code + n_tests].decode()
    token = job[n_code + n_tests :]
    sys.argv[:] = [""]
    sys.path += folders
    _isolate(cpu_s, memory, scratch, parent)
    os.write(result, b"\n")  # any later report may come from the program
    return code, tests, token


def _isolate(cpu_s: int, memory: int, scratch: int, parent: int) -> None:
    """Give up, for the life of the process, all access beyond it; `memory` and `scratch` are limits in bytes."""
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
    buffer = ctypes.create_string_buffer(code)  # a variable, so that the memory stays until the kernel has copied it
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    _call(libc.prctl(22, 2, program, 0, 0), "a filter of system calls (seccomp)")


def _call(result: int, action: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"the kernel refuses {action}: {os.strerror(error)}")


def _enter_namespaces(libc: Any, scratch: int) -> bool:
    """Give up the network and write access to the disk; return False if the kernel does not allow it."""
    user = os.geteuid()
    group = os.getegid()
    folder = os.getcwd()
    if libc.unshare(0x10000000 | 0x40000000 | 0x00020000 | 0x08000000):  # user, network, mounts, IPC
        return False
    try:
        for file, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as ids:
                ids.write(line)
        _call(libc.mount(b"none", b"/", None, 0x40000 | 0x4000, None), "private mounts")
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
    # Operations of BPF.
    load = 0x20
    equal = 0x15
    at_least = 0x35
    any_bit = 0x45
    give = 0x06
    # Verdicts.
    allow = _bpf(give, 0x7FFF0000)
    kill = _bpf(give, 0x80000000)
    refuse = _bpf(give, 0x00050000 | errno.EPERM)
    unknown = _bpf(give, 0x00050000 | errno.ENOSYS)

    def argument(index: int, high: bool = False) -> bytes:
        return _bpf(load, 16 + 8 * index + 4 * high)

    lines = [_bpf(load, 4), _bpf(equal, arch, 1, 0), kill]
    lines += [_bpf(load, 0), _bpf(at_least, _LAST_KNOWN + 1, 0, 1), unknown]
    lines += [_bpf(equal, _CLONE3[column], 0, 1), unknown]
    refused = _BEYOND if read_only else _BEYOND | _WRITING
    for numbers in refused.values():
        if numbers[column] >= 0:
            lines += [_bpf(equal, numbers[column], 0, 1), refuse]
    # A signal of the process to itself, as by abort(), and reading limits are harmless.
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
    """Return an instruction; `if_true` and `if_false` are the numbers of instructions to skip."""
    return struct.pack("HBBI", code, if_true, if_false, value)


if __name__ == "__main__":
    main()
