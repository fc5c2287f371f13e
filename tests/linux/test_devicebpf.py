"""Device programs: the rules put before a program, judged by running it; the real kernel where we may ask it."""

import errno
import itertools
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.linux import devicebpf, syscalls
from nvinject.linux.const import BPF_F_ALLOW_MULTI, CLONE_NEWNS, MS_PRIVATE, MS_REC

# Python 3.12 and newer warn of forks beside the threads of a test runner; the children here only make system calls.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

CHAR, BLOCK = 2, 1
DENY = struct.pack("=BBhi", 0xB7, 0, 0, 0) + struct.pack("=BBhi", 0x95, 0, 0, 0)  # r0 = 0; exit
ALLOW = struct.pack("=BBhi", 0xB7, 0, 0, 1) + struct.pack("=BBhi", 0x95, 0, 0, 0)

Rule = tuple[int, int, str]


def interpret(program: bytes, kind: int, access: int, major: int, minor: int) -> int:
    """Run the few instructions that our programs are made of; registers are checked to be set before they are read."""
    context = (access << 16 | kind, major, minor)
    code = list(struct.iter_unpack("=BBhi", program))
    registers: dict[int, int] = {}
    position = 0
    while True:
        operation, fields, offset, immediate = code[position]
        target, source = fields & 15, fields >> 4
        position += 1
        if operation == 0x61:
            assert source == 1
            registers[target] = context[offset // 4]
        elif operation == 0xBC:
            registers[target] = registers[source]
        elif operation == 0x54:
            registers[target] &= immediate & 0xFFFFFFFF
        elif operation == 0x74:
            registers[target] >>= immediate
        elif operation == 0x55:
            position += offset if registers[target] != immediate else 0
        elif operation == 0xB7:
            registers[target] = immediate
        elif operation == 0x95:
            return registers[0]
        else:
            raise AssertionError(f"unknown instruction {operation:#x}")


# rules, (kind, access letters, major, minor), allowed
DECISIONS = [
    ((), (CHAR, "r", 195, 0), False),
    (((195, 0, "rw"),), (CHAR, "rw", 195, 0), True),
    (((195, 0, "rw"),), (CHAR, "r", 195, 0), True),
    (((195, 0, "rw"),), (CHAR, "w", 195, 0), True),
    (((195, 0, "rw"),), (CHAR, "m", 195, 0), False),
    (((195, 0, "rw"),), (CHAR, "rwm", 195, 0), False),
    (((195, 0, "rwm"),), (CHAR, "rwm", 195, 0), True),
    (((195, 0, "rw"),), (BLOCK, "rw", 195, 0), False),
    (((195, 0, "rw"),), (CHAR, "rw", 195, 1), False),
    (((195, 0, "rw"),), (CHAR, "rw", 196, 0), False),
    (((195, 0, "r"), (195, 255, "rw")), (CHAR, "rw", 195, 255), True),
    (((195, 0, "r"), (195, 0, "rw")), (CHAR, "w", 195, 0), True),
    (((195, 1048575, "m"),), (CHAR, "m", 195, 1048575), True),
]


@pytest.mark.parametrize(("rules", "asked", "allowed"), DECISIONS)
def test_rules_before_a_denying_program(
    rules: tuple[Rule, ...], asked: tuple[int, str, int, int], allowed: bool
) -> None:
    kind, access, major, minor = asked
    program = devicebpf.prepend_rules(DENY, rules)
    assert bool(interpret(program, kind, devicebpf.access_mask(access), major, minor)) is allowed


def test_no_rules_leave_the_program_alone() -> None:
    assert devicebpf.prepend_rules(DENY, ()) == DENY


RULE = st.tuples(
    st.integers(0, 4095), st.integers(0, 1048575), st.sampled_from(["r", "w", "m", "rw", "rm", "wm", "rwm"])
)


@given(st.lists(RULE, max_size=6), st.data())
def test_a_rule_allows_exactly_its_accesses(rules: list[Rule], data: st.DataObject) -> None:
    program = devicebpf.prepend_rules(DENY, tuple(rules))
    major, minor, _ = data.draw(st.sampled_from(rules) if rules else st.just((1, 3, "r")))
    for kind, mask in itertools.product((CHAR, BLOCK), range(1, 8)):
        expected = kind == CHAR and any(
            (rule[0], rule[1]) == (major, minor) and not mask & ~devicebpf.access_mask(rule[2]) for rule in rules
        )
        assert bool(interpret(program, kind, mask, major, minor)) is expected


UNMOVABLE = {
    "call": struct.pack("=BBhi", 0x85, 0, 0, 5) + DENY,
    "map": struct.pack("=BBhi", 0x18, 0x11, 0, 3) + bytes(8) + DENY,
}


@pytest.mark.parametrize("program", UNMOVABLE.values(), ids=UNMOVABLE.keys())
def test_program_that_cannot_be_moved_is_refused(program: bytes) -> None:
    with pytest.raises(ValueError, match="maps or functions"):
        devicebpf.prepend_rules(program, ((1, 3, "r"),))


def test_wide_constant_is_no_map() -> None:
    wide = struct.pack("=BBhi", 0x18, 0x01, 0, 0x85) + struct.pack("=BBhi", 0x85, 0, 0, 0) + DENY
    assert devicebpf.prepend_rules(wide, ((1, 3, "r"),)).endswith(wide)


def in_cgroup2(body: Callable[[str], str]) -> str:
    """Run `body` with a fresh cgroup of version 2 in a child with its own mount namespace; returns its word."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            word = _with_cgroup2(body)
        except BaseException as error:  # noqa: BLE001 # told to the parent
            word = f"error: {type(error).__name__}: {error}"
        os.write(writing, word.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        word = stream.read()
    os.waitpid(child, 0)
    return word


def _with_cgroup2(body: Callable[[str], str]) -> str:
    try:
        syscalls.unshare(CLONE_NEWNS)
        syscalls.mount(None, "/", None, MS_PRIVATE | MS_REC, None)
        syscalls.mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, None)
        group = f"/sys/fs/cgroup/nvinject-test-{os.getpid()}"
        os.mkdir(group)
    except OSError as error:
        return f"skip: no view of cgroup v2 can be mounted here: {error}"
    try:
        return body(group)
    finally:
        Path("/sys/fs/cgroup/cgroup.procs").write_text(str(os.getpid()))
        os.rmdir(group)


def open_errno(path: str, flags: int = os.O_RDWR) -> str:
    """Return the name of the error that opening gives, "" for none."""
    try:
        os.close(os.open(path, flags))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


@pytest.mark.parametrize("flags", [BPF_F_ALLOW_MULTI, 0], ids=["multi", "single"])
def test_kernel_obeys_a_rewritten_program(tmp_path: Path, flags: int) -> None:
    node = str(tmp_path / "nvidia0")

    def body(group: str) -> str:
        try:
            os.mknod(node, 0o20666, os.makedev(195, 0))
            program = devicebpf.load_program(DENY)
        except OSError as error:
            return f"skip: no rights for device nodes or programs: {error}"
        cgroup_fd = os.open(group, os.O_RDONLY)
        devicebpf.attach_program(cgroup_fd, program, flags)
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
        seen = [open_errno(node)]
        found_flags, (identifier,) = devicebpf.query_programs(cgroup_fd)
        old = devicebpf.open_program(identifier)
        instructions = devicebpf.read_instructions(old)
        new = devicebpf.load_program(devicebpf.prepend_rules(instructions, ((195, 0, "rw"),)))
        devicebpf.replace_program(cgroup_fd, old, new, found_flags)
        seen += [open_errno(node), open_errno("/dev/null"), str(len(devicebpf.query_programs(cgroup_fd)[1]))]
        devicebpf.replace_program(cgroup_fd, new, old, found_flags)
        seen.append(open_errno(node))
        same = instructions == DENY
        return f"{seen} {same}"

    word = in_cgroup2(body)
    if word.startswith("skip: "):
        pytest.skip(word[6:])
    # No driver: an allowed open ends at a device number that nobody serves.
    assert word == "['EPERM', 'ENXIO', 'EPERM', '1', 'EPERM'] True"
