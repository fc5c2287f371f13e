"""Answers of NVML that can be given anew: those that the library reads, each with a value of its kind."""

import re
from pathlib import Path

import pytest

from nvfakes import answers, declaration, verbs
from nvfakes.errors import UsageError
from nvfakes.nvml import image

SOURCES = Path(answers.__file__).parent / "nvml"
# Keys that C puts together of two words: what comes before the last dot.
COMPOSED = ("clocks_throttle_reasons", "ecc.errors", "ecc.sram")
# Facts of the whole machine, of its links, and those that image.py makes of an answer.
OWN = {"cuda.version", "dev.control", "dev.directory", "driver.branch", "driver.version", "kernel.socket"}
OWN |= {"kernel.version", "nvml.version", "nvlink.down", "fabric.health", "clocks.none"}

TAKEN = [
    ("power.current_draw_mw", "650000", 650000),
    ("ecc.errors.volatile.double_bit.device_memory", str(1 << 63), 1 << 63),
    ("persistence_mode", "disabled", False),
    ("clocks_throttle_reasons.hw_slowdown", "true", True),
    ("performance_state", "P8", "P8"),
    ("compute_mode", "prohibited", "prohibited"),
    ("name", "Another GPU", "Another GPU"),
    ("fan.speed_percent", "N/A", None),
]
REFUSED = [
    ("power.curent_draw_mw", "1", r"no answer 'power.curent_draw_mw' \(did you mean power.current_draw_mw\?\)"),
    ("", "1", "no answer ''"),
    ("power", "1", "no answer 'power'"),
    ("fabric", "x", "no answer 'fabric'"),
    ("a\nb", "1", "no answer"),
    ("thermal.temperature_gpu_c", "hot", "'hot' is not a whole number from 0 to 4294967295"),
    ("thermal.temperature_gpu_c", "-1", "not a whole number"),
    ("thermal.temperature_gpu_c", "36.6", "not a whole number"),
    ("thermal.temperature_gpu_c", "", "not a whole number"),
    ("thermal.temperature_gpu_c", "\u0663", "not a whole number"),
    ("thermal.temperature_gpu_c", "4294967296", "not a whole number"),
    ("memory.used_bytes", "9" * 5000, "not a whole number"),
    ("persistence_mode", "perhaps", "'perhaps' is not enabled, true, 1, disabled"),
    ("compute_mode", "exclusive", "'exclusive' is not default, exclusive_thread"),
    ("performance_state", "P16", "'P16' is not P0, P1"),
    ("name", "a\0b", "printable"),
    ("name", "\udcff", "printable"),
    ("name", "x" * 80, "1 to 79"),
    ("name", "", "1 to 79"),
    ("uuid", "GPU-1", "is what the machine's file says"),
    ("mig.mode_current", "enabled", "use nvfakes mig"),
    ("processes", "1", "is a list"),
    ("lost", "1", "use nvfakes health"),
]


@pytest.mark.parametrize(("key", "text", "value"), TAKEN)
def test_a_value_of_its_kind_is_taken(key: str, text: str, value: object) -> None:
    found = answers.read_value(key, text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(("key", "text", "message"), REFUSED)
def test_another_one_is_refused_in_one_line(key: str, text: str, message: str) -> None:
    """Before a machine is changed: what its server could not make facts of would end it."""
    with pytest.raises(UsageError, match=message):
        verbs.answer(declaration.load("two-h100"), 0, key, text)


def test_the_library_reads_what_can_be_answered() -> None:
    """Every name in the table stands in the sources, and every name there with a group is in the table."""
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES.glob("*.c"))
    literals = set(re.findall(r'"([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*)"', text))
    names = {*answers.READERS, *answers.ELSEWHERE}
    made_of = {"fabric.health_mask": "fabric.health"}
    unread = {
        key for key in names
        if made_of.get(key, key) not in literals
        and not (key.startswith(COMPOSED) and {key.rpartition(".")[2], key.partition("ecc.sram.")[2]} & literals)
    }  # fmt: skip
    assert unread == set()
    sram = {f"ecc.sram.{literal}" for literal in literals}
    assert {literal for literal in literals if "." in literal} - names - OWN - {
        key.removeprefix("ecc.sram.") for key in names & sram
    } - {"layout.h", "fake.h"} == set()


@pytest.mark.parametrize("key", sorted(answers.READERS))
def test_the_library_gets_every_answer_as_a_number_or_a_text(key: str) -> None:
    """What NVML cannot read as a number it would not support, silently."""
    text = next(
        text for text in ("7", "enabled", "P3", *image.CHOICES.get(key, ()), "healthy", "text") if takes(key, text)
    )
    machine = verbs.answer(declaration.load("two-h100"), 0, key, text)
    facts = image.gpu_facts(machine.gpus[0])
    name = {"fabric.health_mask": "fabric.health"}.get(key, key)
    assert facts[name].isdecimal() or text == "7"  # a text takes any, also that


def takes(key: str, text: str) -> bool:
    try:
        answers.read_value(key, text)
    except UsageError:
        return False
    return True


def test_the_help_tells_every_answer() -> None:
    words = re.findall(r"[\w.]+", answers.format_help())
    assert {key.rpartition(".")[2] for key in answers.READERS} <= {word.rpartition(".")[2] for word in words}
