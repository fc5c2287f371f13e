"""Device programs of cgroup v2 (BPF_PROG_TYPE_CGROUP_DEVICE), as far as runtimes and systemd write them, evaluated.

Belongs here: what a program says to one device. Does not belong here: reading programs of the kernel (nvinject.linux).
The instruction set is that of the kernel's Documentation/bpf/standardization/instruction-set.rst; a program with
anything else (calls, maps, loops) has no answer.
"""

CHARACTER = 2  # BPF_DEVCG_DEV_CHAR of linux/bpf.h
ACCESS = {"m": 1, "r": 2, "w": 4}
LONGEST_RUN = 1 << 16

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_LOADS = {0x61: 4, 0x69: 2, 0x71: 1}
_EXIT = 0x95


class UnknownInstructionError(ValueError):
    """The program does something that device filters of runtimes do not."""


def allows(program: bytes, access: str, major: int, minor: int) -> bool:
    """Say whether a program lets a character device be used so; raises UnknownInstructionError."""
    mask = sum(ACCESS[letter] for letter in access)
    context = b"".join(word.to_bytes(4, "little") for word in (mask << 16 | CHARACTER, major, minor))
    return _Run(program, context).result() != 0


class _Run:
    """One run: registers, of which the first argument points at the context, and the place reached."""

    def __init__(self, program: bytes, context: bytes) -> None:
        self.program = program
        self.context = context
        self.registers: list[int] = [0] * 11
        self.place = 0

    def result(self) -> int:
        for _ in range(LONGEST_RUN):
            code, destination, source, offset, immediate = self.fetch()
            if code == _EXIT:
                return self.registers[0] & _MASK32
            if code in _LOADS:
                # Only the context can be loaded from; whatever register holds its address.
                data = self.context[offset : offset + _LOADS[code]]
                if offset < 0 or len(data) < _LOADS[code]:
                    raise UnknownInstructionError("a load outside of the context")
                self.registers[destination] = int.from_bytes(data, "little")
            elif code & 7 in {4, 7}:
                self.calculate(code, destination, source, immediate)
            elif code & 7 in {5, 6}:
                self.jump(code, destination, source, offset, immediate)
            else:
                raise UnknownInstructionError(f"instruction {code:#x}")
        raise UnknownInstructionError("a program that does not end")

    def fetch(self) -> tuple[int, int, int, int, int]:
        start = self.place * 8
        if not 0 <= start <= len(self.program) - 8:
            raise UnknownInstructionError("a jump out of the program")
        self.place += 1
        code, registers = self.program[start], self.program[start + 1]
        offset = int.from_bytes(self.program[start + 2 : start + 4], "little", signed=True)
        immediate = int.from_bytes(self.program[start + 4 : start + 8], "little", signed=True)
        return code, min(registers & 15, 10), min(registers >> 4, 10), offset, immediate

    def operand(self, code: int, source: int, immediate: int) -> int:
        return (self.registers[source] if code & 8 else immediate) & _MASK64

    def calculate(self, code: int, destination: int, source: int, immediate: int) -> None:
        wide = code & 7 == 7
        left, right = self.registers[destination], self.operand(code, source, immediate)
        if not wide:
            left, right = left & _MASK32, right & _MASK32
        shift = right & (63 if wide else 31)
        results = {
            0x00: left + right,
            0x10: left - right,
            0x40: left | right,
            0x50: left & right,
            0x60: left << shift,
            0x70: left >> shift,
            0xA0: left ^ right,
            0xB0: right,
        }
        if code & 0xF0 not in results:
            raise UnknownInstructionError(f"operation {code:#x}")
        self.registers[destination] = results[code & 0xF0] & (_MASK64 if wide else _MASK32)

    def jump(self, code: int, destination: int, source: int, offset: int, immediate: int) -> None:
        left, right = self.registers[destination], self.operand(code, source, immediate)
        if code & 7 == 6:
            left, right = left & _MASK32, right & _MASK32
        conditions = {
            0x00: True,
            0x10: left == right,
            0x20: left > right,
            0x30: left >= right,
            0x40: left & right != 0,
            0x50: left != right,
            0xA0: left < right,
            0xB0: left <= right,
        }
        if code & 0xF0 not in conditions:
            raise UnknownInstructionError(f"jump {code:#x}")
        if conditions[code & 0xF0]:
            self.place += offset
