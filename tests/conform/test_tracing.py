"""Tracing: calls are seen in parent and child, fail when told to, and nothing is waited for in vain."""

import errno
import platform
import signal
import sys

import pytest

from nvconform import tracing
from nvconform.faultmodel import Fault, errors_of, judge_words, sample
from nvconform.systemcalls import count
from nvconform.tracing import Call, Outcome, TracingError


@pytest.fixture(autouse=True)
def traceable() -> None:
    reason = tracing.unavailable()
    if reason:
        pytest.skip(reason)


def test_calls_of_a_child_are_seen() -> None:
    seen: set[tuple[int, str]] = set()
    outcome = tracing.run(["/bin/sh", "-c", "(exit 3)"], on_entry=lambda call: seen.add((call.process, call.name)))
    assert outcome.code == 3
    assert {(0, "exit_group"), (1, "exit_group")} <= seen


def test_a_call_fails_and_is_not_made() -> None:
    def fail(call: Call) -> int | None:
        return errno.EIO if call.name == "openat" and call.word(1) == "/etc/passwd" else None

    outcome = tracing.run(["/bin/cat", "/etc/passwd"], on_entry=fail, environment={"LC_ALL": "C"})
    assert (outcome.code, outcome.message) == (1, "/bin/cat: /etc/passwd: Input/output error\n")


def test_a_break_that_cannot_be_moved_is_told_as_the_kernel_does() -> None:
    """The C library takes memory elsewhere then; given an error in place of the break it would write beyond it."""
    failed: list[Call] = []

    def fail(call: Call) -> int | None:
        if call.name != "brk" or call.arguments[0] == 0:
            return None
        failed.append(call)
        return errno.ENOMEM

    outcome = tracing.run([sys.executable, "-ISc", "[str(n) * 50 for n in range(30000)]"], on_entry=fail)
    assert (outcome.code, outcome.signal) == (0, 0)
    assert failed


def test_standard_input_is_given() -> None:
    outcome = tracing.run(["/bin/sh", "-c", "read -r word; echo $word >&2"], on_entry=lambda _: None, stdin=b"word\n")
    assert outcome.message == "word\n"


def test_what_hangs_is_ended() -> None:
    outcome = tracing.run(["/bin/sleep", "60"], on_entry=lambda _: None, seconds=0.5)
    assert (outcome.code, outcome.signal) == (None, 0)


def test_what_is_killed_is_told_from_what_hangs() -> None:
    outcome = tracing.run(["/bin/sh", "-c", "kill -9 $$"], on_entry=lambda _: None)
    assert (outcome.code, outcome.signal) == (None, 9)


def test_what_is_left_running_is_named_and_ended() -> None:
    started = 'until read -r name < /proc/$!/comm && [ "$name" = sleep ]; do :; done'
    outcome = tracing.run(["/bin/sh", "-c", f"sleep 61 & {started}; exit 0"], on_entry=lambda _: None)
    assert outcome.code == 0
    assert [left.split(" ", 1)[1] for left in outcome.left] == ["sleep 61"]


def test_the_alarm_of_the_caller_is_set_again() -> None:
    before, _ = signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        tracing.run(["/bin/true"], on_entry=lambda _: None)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, before)


def test_a_machine_without_known_registers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(TracingError, match="riscv64"):
        tracing.run(["/bin/true"], on_entry=lambda _: None)


def test_calls_are_counted_by_name_in_parent_and_child() -> None:
    code, calls = count(["/bin/sh", "-c", "(exit 3); read -r word; exit $word"], stdin=b"4\n")
    assert code == 4
    assert calls["exit_group"] == 2


def test_what_is_killed_has_no_count() -> None:
    with pytest.raises(TracingError, match="killed by signal 9"):
        count(["/bin/sh", "-c", "kill -9 $$"])


# Outcome, the fault's call, what the verdict says of it ("" for nothing).
OUTCOMES = [
    (Outcome(code=0), "openat", ""),
    (Outcome(code=6, message="nvinject: cannot read /x: Input/output error\n"), "openat", ""),
    (Outcome(code=6, message=""), "openat", "nothing of use"),
    (Outcome(code=1, message="Traceback (most recent call last):\n"), "openat", "traceback"),
    (Outcome(code=70, message="nvinject: internal error: KeyError\n"), "openat", "mistake of its own"),
    (Outcome(code=0, left=["7 sleep"]), "openat", "leaves a process"),
    (Outcome(code=None), "openat", "hangs"),
    (Outcome(code=None, signal=11), "openat", "signal 11"),
    (Outcome(code=None, signal=11), "mmap", ""),
]


@pytest.mark.parametrize(("outcome", "name", "words"), OUTCOMES)
def test_what_is_said_of_an_outcome(outcome: Outcome, name: str, words: str) -> None:
    problems = judge_words(outcome, Fault(0, name, "", 0, "ENOMEM"))
    assert bool(problems) == bool(words)
    assert words in " ".join(problems)


def test_a_sample_has_one_of_each_kind() -> None:
    alike = [Fault(1, "openat", f"libcuda.so.{number}", 0, "EIO") for number in range(3)]
    others = [Fault(0, "openat", "libcuda.so.1", 0, "EIO"), Fault(1, "openat", "libcuda.so.1", 0, "ENOMEM")]
    assert sample([*alike, *others]) == [alike[0], *others]


def test_calls_that_cannot_fail_are_left_out() -> None:
    assert errors_of("getpid") == ()
    assert "EMFILE" in errors_of("openat")
    assert errors_of("a call of tomorrow")
