"""The stand-by: a copy of the shim beside the low-level runtime, which does the createContainer hook's work for it.

Belongs here: the two FIFOs in the container's run directory, the process behind them, and becoming the hook. Does not
belong here: what is done (rootfs.py, createcontainer.py) and the script that calls (shimlauncher.py). A hook that is a
program of ours starts an interpreter and loads modules while the container waits, ten times what its work takes. This
process has them already, and while the runtime does its own part it writes a loader cache that takes time.

It takes nothing over before it has taken all: until it has the hook's standard input and error, its mount namespace and
its working directory, the hook can still do everything itself, and does so wherever the stand-by is missing. Then it
says that it is busy, and if it ends before its work does, the container fails.
"""

import sys

from nvinject import leanos as os
from nvinject.cli.debuglog import Log
from nvinject.cli.main import INTERNAL_ERROR
from nvinject.leanos import _exit
from nvinject.linux import namespaces
from nvinject.render.planfile import ANSWER, CALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from nvinject.core.plan import Operation
    from nvinject.render.journal import Journal
    from nvinject.render.planfile import HookPlan

BUSY = b"busy\n"
HOOK_ANSWER = 4  # the script's descriptor of the answer
HOOK_INPUT = 9  # where the script keeps its standard input: a shell's `read` puts another one in its place meanwhile
_SIGNALS = (1, 2, 3, 15)  # HUP, INT, QUIT, TERM, on every architecture
_SIZE = 64  # bytes of a process id and a newline, with room
_FIFO = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC  # fifo(7): to open for both never waits for another side
_PATH = os.O_PATH | os.O_CLOEXEC


class Standby:
    """The work for one container, and the FIFOs of its run directory, open while the low-level runtime has not begun.

    `rootfs` is done below the root file system at once, `plan` in the hook's place.
    """

    def __init__(self, folder: str, rootfs: "tuple[Operation, ...]", plan: "HookPlan", root_fd: int) -> None:
        """Make and open the FIFOs, and keep the root file system open where it is needed; raises OSError."""
        self._folder = folder
        self._rootfs = rootfs
        self._plan = plan
        self._root_fd = -1
        self._descriptors: list[int] = []
        try:
            # The answer first: a hook that sees the call may rely on both.
            for name in (ANSWER, CALL):
                path = f"{folder}/{name}"
                os.mkfifo(path, 0o600)
                self._descriptors.append(os.open(path, _FIFO))
            if rootfs:
                self._root_fd = os.open(f"/proc/self/fd/{root_fd}", _PATH | os.O_DIRECTORY)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close and remove everything: the hook does the work itself."""
        self._unlink()
        for descriptor in (*self._descriptors, self._root_fd):
            if descriptor >= 0:
                os.close_quietly(descriptor)
        self._descriptors, self._root_fd = [], -1

    def start(self, *, as_child: bool) -> None:
        """Start the process; raises OSError.

        It ends with the hook, or before the hook has called with this process and what this one becomes. No signal for
        the engine's group of processes concerns it. As a child of the runtime it is there a millisecond earlier, but a
        runtime that waits until it has none (crun run, in the foreground) would wait for it.
        """
        from _signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask  # type: ignore[import-not-found]

        runtime = os.pidfd_open(os.getpid())
        usual = pthread_sigmask(SIG_BLOCK, _SIGNALS)
        try:
            child = os.fork()
            if child == 0:
                try:
                    if as_child or os.fork() == 0:
                        self._serve(runtime)
                finally:
                    _exit(0)
            if not as_child:
                os.waitpid(child, 0)
        finally:
            pthread_sigmask(SIG_SETMASK, usual)
            os.close(runtime)

    def _serve(self, runtime: int) -> "NoReturn":
        """Do what can be done before the hook calls, and then what it is called for."""
        journal = None
        try:
            _leave_engine()
            from nvinject.cli.createcontainer import perform
            from nvinject.cli.hook import read_all
            from nvinject.cli.main import complain, guard

            with Log(self._plan.debug, echo=False, title="stand-by") as log:
                journal, failure = self._write_rootfs(log)
                process = self._await_call(runtime)
            if not process:
                self._end_uncalled(journal)
            self._unlink()
            hook = os.pidfd_open(process)
            _become(process, self._descriptors[0])
            os.write(self._descriptors[0], BUSY)
        except BaseException:  # noqa: BLE001 - whatever it is, the hook does the work without us, and tells what fails then
            if journal is not None:
                journal.undo()
            self._unlink()
            _exit(1)

        def work() -> int:
            if failure is not None:
                raise failure
            return perform(self._plan, read_all(0, "standard input"))

        code = INTERNAL_ERROR
        try:
            code = guard(work)
        except BaseException:  # noqa: BLE001 - guard raises it again where NVINJECT_DEBUG asks for the traceback
            sys.excepthook(*sys.exc_info())
        # A hook that was killed meanwhile, as by a time limit, fails the container whatever we did.
        left = journal.undo() if code or _has_ended(hook) else journal.commit()
        if left:
            complain(f"warning: left behind in the container: {', '.join(left)}")
        os.write(self._descriptors[0], b"%d\n" % code)
        _exit(0)

    def _end_uncalled(self, journal: "Journal") -> "NoReturn":
        """End with the runtime; what was done is taken back, unless somebody else has taken over the container.

        A hook that did the work itself removes the FIFOs, and a second create of the same container makes others.
        """
        if self._owns_folder():
            journal.undo()
            self._unlink()
        else:
            journal.commit()
        _exit(0)

    def _owns_folder(self) -> bool:
        try:
            return os.path.samestat(os.lstat(f"{self._folder}/{CALL}"), os.fstat(self._descriptors[1]))
        except OSError:
            return False

    def _unlink(self) -> None:
        """Remove our FIFOs: those who have them open need no names."""
        for name, descriptor in zip((ANSWER, CALL), self._descriptors):  # noqa: B905 # none or one may be open
            path = f"{self._folder}/{name}"
            try:
                if os.path.samestat(os.lstat(path), os.fstat(descriptor)):
                    os.unlink(path)
            except OSError:
                continue  # it has gone, or goes with the folder

    def _write_rootfs(self, log: Log) -> "tuple[Journal, Exception | None]":
        """Do what needs no hook; a failure is the hook's to tell."""
        from nvinject.render.journal import Journal
        from nvinject.render.rootfs import write_rootfs

        if not self._rootfs:
            return Journal(), None
        try:
            return write_rootfs(self._rootfs, self._root_fd, log.write), None
        except Exception as error:  # noqa: BLE001 - raised again where it can be told
            log.write(f"failed: {error}")
            return Journal(), error

    def _await_call(self, runtime: int) -> int:
        """Return the process id of the hook, 0 when the runtime ended without calling it."""
        from select import POLLIN, poll

        call = self._descriptors[1]
        waiting = poll()
        waiting.register(call, POLLIN)
        waiting.register(runtime, POLLIN)
        ready = [descriptor for descriptor, _ in waiting.poll()]
        return int(os.read(call, _SIZE)) if call in ready else 0


def _has_ended(process: int) -> bool:
    from select import POLLIN, poll

    waiting = poll()
    waiting.register(process, POLLIN)
    return bool(waiting.poll(0))


def _leave_engine() -> None:
    """Let go of what the engine gave the runtime: session, working directory, descriptors."""
    os.setsid()
    os.chdir("/")
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            if descriptor > 2 and os.get_inheritable(descriptor):
                os.close(descriptor)
        except OSError:
            continue  # that of the listing itself
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def _become(process: int, answer: int) -> None:
    """Take the hook's standard input and error, its mount namespace and its working directory; raises OSError."""
    proc = os.open(f"/proc/{process}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # A hook may be killed at any time, and another process have its number: only the hook waits for this answer.
    if not os.path.samestat(os.stat(f"fd/{HOOK_ANSWER}", dir_fd=proc), os.fstat(answer)):
        raise OSError(0, "the caller is not the hook", f"/proc/{process}")
    state = os.open(f"fd/{HOOK_INPUT}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    messages = os.open("fd/2", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, dir_fd=proc)
    directory = os.open("cwd", _PATH | os.O_DIRECTORY, dir_fd=proc)
    namespace = namespaces.open_namespace(proc, "mnt")
    if namespaces.is_ours(namespace, "mnt"):
        raise OSError(0, "the caller is in no container", f"/proc/{process}")
    namespaces.enter_mount_namespace(namespace)
    os.fchdir(directory)
    os.dup2(state, 0)
    os.dup2(messages, 2)
    for descriptor in (state, messages, directory, namespace, proc):
        os.close_quietly(descriptor)
