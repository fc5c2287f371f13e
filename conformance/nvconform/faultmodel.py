"""A system call that fails: with which errors it plausibly can, which calls a run has, and how a run may end then.

Belongs here: faults as values, letting one happen, and the verdict about what an injector says. Does not belong here:
tracing (tracing.py), what is run (faulttargets.py) and all the runs (faults.py).
"""

import errno
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nvconform.tracing import Call, Outcome
from nvconform.tracingpaths import CALLS, MOUNTING

# What cannot fail, or only in a process that is broken beyond telling.
NEVER = frozenset(
    {
        # Its error is an answer, and another folder is as good.
        "access",
        "arch_prctl",
        "clock_gettime",
        "clock_nanosleep",
        "exit",
        "exit_group",
        "futex",
        "getegid",
        "geteuid",
        "getgid",
        "getgroups",
        "getpid",
        "getppid",
        "gettid",
        "getuid",
        "prctl",
        "prlimit64",
        "rseq",
        "rt_sigaction",
        "rt_sigprocmask",
        "rt_sigreturn",
        "sched_getaffinity",
        "set_robust_list",
        "set_tid_address",
        "sysinfo",
        "umask",
        "uname",
        "wait4",
        "waitid",
    }
)
_FILE = ("EIO", "ENOMEM")
_WRITE = ("EIO", "ENOSPC", "EPERM")
_MOUNT = ("ENOMEM", "ENOSPC", "EPERM")
ERRORS: dict[str, tuple[str, ...]] = {
    "brk": ("ENOMEM",),
    "chdir": _FILE,
    "clone": ("EAGAIN", "ENOMEM", "EPERM"),
    "clone3": ("EAGAIN", "ENOMEM", "EPERM"),
    "close": ("EINTR", "EIO"),
    "close_range": ("EINTR", "ENOMEM"),
    "dup": ("EMFILE",),
    "dup2": ("EMFILE", "EINTR"),
    "dup3": ("EMFILE", "EINTR"),
    "execve": ("EIO", "ENOMEM"),
    "fchdir": ("EIO", "ENOMEM"),
    "fchmod": _WRITE,
    "fchown": _WRITE,
    "fchownat": _WRITE,
    "fcntl": ("EMFILE",),
    "flock": ("EINTR", "ENOLCK"),
    "fork": ("EAGAIN", "ENOMEM"),
    "fsync": ("EINTR", "EIO", "ENOSPC"),
    "ftruncate": ("EINTR", "EIO", "EPERM"),
    "getdents64": ("EIO", "ENOMEM"),
    "getrandom": ("EINTR",),
    "ioctl": ("EIO",),
    "linkat": _WRITE,
    "lseek": ("EIO",),
    "madvise": ("ENOMEM",),
    "mkdir": _WRITE,
    "mkdirat": _WRITE,
    "mmap": ("ENOMEM",),
    "mprotect": ("ENOMEM",),
    "mremap": ("ENOMEM",),
    "munmap": ("ENOMEM",),
    "open": ("EIO", "EMFILE", "ENOMEM", "EPERM"),
    "openat": ("EINTR", "EIO", "EMFILE", "ENOMEM", "EPERM"),
    "openat2": ("EINTR", "EIO", "EMFILE", "ENOMEM", "EPERM"),
    "pipe2": ("EMFILE", "ENOMEM"),
    "poll": ("EINTR", "ENOMEM"),
    "pread64": ("EINTR", "EIO"),
    "pwrite64": ("EINTR", "EIO", "ENOSPC"),
    "read": ("EINTR", "EIO"),
    "rename": _WRITE,
    "renameat": _WRITE,
    "renameat2": _WRITE,
    "rmdir": _WRITE,
    "setns": ("ENOMEM", "EPERM"),
    "symlink": _WRITE,
    "symlinkat": _WRITE,
    "unlink": _WRITE,
    "unlinkat": _WRITE,
    "write": ("EINTR", "EIO", "ENOSPC"),
    **dict.fromkeys((*MOUNTING, "fsopen", "fsconfig", "fsmount"), _MOUNT),
}
OTHERS = _FILE
MEMORY = frozenset({"brk", "mmap", "mprotect", "mremap", "munmap"})
# Numbers and names that differ between calls of one kind: a sample takes one call of each kind.
RANDOM = re.compile(r"(?<=\.nvinject-)[0-9a-f]+|(?<=/proc/)\d+|(?<=nvconform-)\d+")
VARYING = re.compile(r"[0-9a-f]{2,}|\d+|lib[\w.+-]*\.so[\w.]*")


@dataclass(frozen=True)
class Fault:
    """One call to fail: which it is, and how it fails.

    A call is known by its process (in order of birth), name, paths, and how many such calls there were before: numbers
    would shift with every line that a file of the host has more.
    """

    process: int
    name: str
    about: str
    occurrence: int
    error: str

    def describe(self) -> str:
        """Return the fault in one line."""
        return f"{self.error} for {self.name}({self.about}) #{self.occurrence} of process {self.process}"


def errors_of(name: str) -> tuple[str, ...]:
    """Return the errors that a call is to fail with."""
    return () if name in NEVER else ERRORS.get(name, OTHERS)


class Recorder:
    """Notes the calls of a run from the moment on when the injector's own code works."""

    def __init__(self, begins: str) -> None:
        """Begin with nothing; `begins` is the text of the call at which it begins: the start-up before is Python's."""
        self.calls: list[tuple[int, str, str, int]] = []
        self._count: Counter[tuple[int, str, str]] = Counter()
        self._begins = begins
        self.begun = False

    def entry(self, call: Call) -> None:
        """Note a call."""
        about = about_call(call)
        self.begun = self.begun or self._begins in f"{call.name} {about}"
        key = call.process, call.name, about
        if self.begun:
            self.calls.append((*key, self._count[key]))
        self._count[key] += 1


def about_call(call: Call) -> str:
    """Return the paths of a call, which say what it is for, without what differs from run to run."""
    words = [call.word(argument.text) or "" for argument in CALLS.get(call.name, ())]
    return RANDOM.sub("*", ", ".join(word for word in words if word))


def faults_of(calls: Sequence[tuple[int, str, str, int]]) -> list[Fault]:
    """Return every fault that the calls of a run can have."""
    return [
        Fault(process, name, about, occurrence, error)
        for process, name, about, occurrence in calls
        for error in errors_of(name)
    ]


def sample(faults: Sequence[Fault]) -> list[Fault]:
    """Return the first fault of each kind: process, call, paths with numbers and libraries left out, error."""
    chosen: dict[tuple[Any, ...], Fault] = {}
    for fault in faults:
        about = VARYING.sub("*", fault.about)
        chosen.setdefault((fault.process, fault.name, about, fault.error), fault)
    return list(chosen.values())


class Failing:
    """Lets one call fail."""

    def __init__(self, fault: Fault) -> None:
        """Take the fault."""
        self.fault = fault
        self.done = False
        self._seen = 0

    def entry(self, call: Call) -> int | None:
        """Return the error number when the call is the one."""
        fault = self.fault
        if self.done or (call.process, call.name) != (fault.process, fault.name) or about_call(call) != fault.about:
            return None
        self._seen += 1
        if self._seen <= fault.occurrence:
            return None
        self.done = True
        return int(getattr(errno, fault.error))


def judge_words(outcome: Outcome, fault: Fault) -> list[str]:
    """Return what is wrong with the end of a run, whatever came of the container.

    Without memory the C library or Python may crash before anything of the injector's runs again: then it is enough
    that nothing was changed.
    """
    if outcome.code is None:
        how = f"is killed by signal {outcome.signal}" if outcome.signal else "hangs"
        if outcome.signal and fault.name in MEMORY:
            return []
        return [f"{how}: {outcome.message.strip()[-200:]!r}"]
    problems = [f"leaves a process: {left}" for left in outcome.left]
    text = outcome.message.strip()
    if "Traceback" in text:
        problems.append(f"shows a traceback: {text[-300:]!r}")
    if outcome.code and not any(line.startswith("nvinject: ") and len(line) > 20 for line in text.splitlines()):
        problems.append(f"says nothing of use: {text[-200:]!r}")
    if outcome.code == 70 or "this is a fault of nvinject" in text or "internal error" in text:
        problems.append(f"takes it for a mistake of its own: {text[-300:]!r}")
    return problems
