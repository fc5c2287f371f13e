"""Requirements: grammar, evaluation, wording; the laws by hypothesis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.core.model import Driver, Gpu
from nvinject.core.requirements import (
    HostFacts,
    Requirement,
    Rule,
    attributes,
    check,
    collect_facts,
    evaluate,
    needed_attributes,
    parse,
)
from nvinject.errors import HostError, InputError, RequirementError

H100 = HostFacts(driver="570.133.20", cuda="12.8", arch="9.0", brand="Nvidia", label="GPU 0 (GPU-1)")
T4 = HostFacts(driver="535.161.08", cuda="12.2", arch="7.5", brand="Tesla")
OLD = HostFacts(driver="450.80", cuda="12", arch=None, brand=None)

HOLDS = [
    ("", H100),
    (" , ,, ", H100),
    ("cuda>=12.8 brand=tesla,driver>=535,driver<536", T4),  # public case 1
    ("driver>=450.80.00", OLD),  # public case 4
    ("cuda>=12.0", OLD),
    ("cuda>=11.0,  brand=tesla,", OLD),
    ("cuda>=12.0 driver>=470", H100),  # observed 16
    ("cuda>=99 brand=tesla,driver>=470 cuda>=12.8 brand=nvidia", H100),  # observed 18c
    ("CUDA>=12,Brand=NVIDIA,aRCh=9", H100),
    ("brand!=tesla", H100),
    ("brand!=nvidia,driver!=1 arch!=9.1", H100),
    ("brand=anything,arch>99", OLD),  # the host does not tell
    ("cuda<=12.8", H100),
    ("cuda<12.10", H100),
]

FAILS = [
    ("driver>=450.80.02", OLD),
    ("cuda>=99", H100),  # observed 17
    ("brand=tesla", H100),  # observed 18d
    ("arch<9.0", H100),  # observed 18e
    ("brand!=NVIDIA", H100),
    ("cuda>=12,driver<500", H100),
    ("cuda>12.8", H100),
    ("cuda=12.7 cuda=12.9", H100),
    ("brand=unknown1", HostFacts(brand="Unknown")),
    ("cuda>=99 ,", H100),  # an empty alternative is no way out
]

MALFORMED = [
    ("cuda>>12", "unknown operator '>>'", "~~~~^"),  # observed 18
    ("bar>=1", "unknown attribute 'bar'", "^"),  # observed 18b
    ("cuda>=11 flavour>=3", "unknown attribute 'flavour'", "         ^"),  # public case 4
    ("cuda==11", "unknown operator '=='", "~~~~^"),
    ("cuda=>11", "unknown operator '=>'", "~~~~^"),
    ("cuda=<11", "unknown operator '=<'", "~~~~^"),
    ("cuda<>11", "unknown operator '<>'", "~~~~^"),
    ("cuda!11", "unknown operator '!'", "~~~~^"),
    ("cuda", "no operator after 'cuda'", "~~~~^"),
    ("cuda >= 11", "no operator after 'cuda'", "~~~~^"),
    ("cuda>=", "no value after 'cuda>='", "~~~~~~^"),
    ("driver>=1,cuda>=,arch=1", "no value after 'cuda>='", "          ~~~~~~^"),
    (">=11", "no attribute before '>='", "^"),
    ("cuda>=11.x", "'11.x' is no version", "~~~~~~~~~^"),
    ("cuda>=11..2", "'11..2' is no version", "~~~~~~^"),
    ("cuda>=" + "9" * 5000, "is no version", "~~~~~~^"),
    ("brand>=tesla", "brand cannot be compared with '>='", "~~~~~^"),
    ("cuda>=11\tdriver>=3", r"'11\tdriver>=3' is no version", "~~~~~~~~^"),
    ("cuda>=11\n", r"'11\n' is no version", "~~~~~~~~^"),
    ("\u017f>=1", "unknown attribute", "^"),
]


@pytest.mark.parametrize(("expression", "facts"), HOLDS)
def test_requirements_that_hold(expression: str, facts: HostFacts) -> None:
    (verdict,) = evaluate((("NVIDIA_REQUIRE_CUDA", expression),), (facts,))
    assert verdict.satisfied
    check((("NVIDIA_REQUIRE_CUDA", expression),), (facts,))


@pytest.mark.parametrize(("expression", "facts"), FAILS)
def test_requirements_that_fail(expression: str, facts: HostFacts) -> None:
    (verdict,) = evaluate((("NVIDIA_REQUIRE_CUDA", expression),), (facts,))
    assert not verdict.satisfied
    with pytest.raises(RequirementError):
        check((("NVIDIA_REQUIRE_CUDA", expression),), (facts,))


@pytest.mark.parametrize(("expression", "problem", "marks"), MALFORMED)
def test_malformed_requirements_show_the_place(expression: str, problem: str, marks: str) -> None:
    with pytest.raises(InputError) as caught:
        check((("NVIDIA_REQUIRE_X", expression),), (H100,))
    message = caught.value.message
    assert message.startswith("NVIDIA_REQUIRE_X is malformed at character")
    assert problem in message
    assert str(caught.value).isprintable()
    source, drawn = caught.value.detail.split("\n")
    assert drawn == marks
    assert len(source) == len(expression)


def test_an_unknown_attribute_comes_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="arch, brand, cuda, driver"):
        parse("flavour>=3")


REFUSALS = [
    (
        "cuda>=12.8 brand=tesla,driver<536",
        HostFacts(driver="550.54", cuda="12.2", brand="Tesla", label="GPU 0 (GPU-1)"),
        "CUDA is not satisfied on GPU 0 (GPU-1): cuda>=12.8 (cuda is 12.2) | brand=tesla,driver<536 (driver is 550",
        "update the driver",
    ),
    ("brand=tesla", H100, "on GPU 0 (GPU-1): brand=tesla (brand is Nvidia)", "NVIDIA_DISABLE_REQUIRE"),
    ("driver<100,driver>600", T4, "satisfied: driver<100,driver>600 (driver is 535.161.08)", "update the driver"),
    ("brand=t4,arch>=8", T4, "brand=t4,arch>=8 (brand is Tesla, arch is 7.5)", "NVIDIA_DISABLE_REQUIRE"),
]


@pytest.mark.parametrize(("expression", "facts", "text", "hint"), REFUSALS)
def test_refusal_shows_every_alternative(expression: str, facts: HostFacts, text: str, hint: str) -> None:
    with pytest.raises(RequirementError) as caught:
        check((("NVIDIA_REQUIRE_CUDA", expression),), (facts,))
    assert text in caught.value.message
    assert hint in caught.value.hint
    assert "NVIDIA_DISABLE_REQUIRE" in caught.value.hint


def test_the_driver_is_blamed_only_for_a_lower_bound() -> None:
    with pytest.raises(RequirementError) as caught:
        check((("NVIDIA_REQUIRE_CUDA", "driver<500,arch>=10"),), (H100,))
    assert "update" not in caught.value.hint


def test_each_variable_must_hold_on_each_gpu() -> None:
    both = (("NVIDIA_REQUIRE_ARCH", "arch>=8"), ("NVIDIA_REQUIRE_CUDA", "cuda>=12"))
    check(both, (H100,))
    with pytest.raises(RequirementError, match="NVIDIA_REQUIRE_ARCH is not satisfied: arch>=8"):
        check(both, (H100, T4))
    with pytest.raises(RequirementError, match=r"NVIDIA_REQUIRE_A is .*; NVIDIA_REQUIRE_B is "):
        check((("NVIDIA_REQUIRE_A", "arch>=98"), ("NVIDIA_REQUIRE_B", "cuda>=98")), (H100, T4))
    assert len(evaluate(both, (H100, T4))) == 4


def test_a_host_value_that_is_no_version_is_the_hosts_fault() -> None:
    check((("NVIDIA_REQUIRE_CUDA", "cuda>=1"),), (HostFacts(driver="weird", cuda="2"),))
    with pytest.raises(HostError, match="driver version"):
        check((("NVIDIA_REQUIRE_CUDA", "driver>=1"),), (HostFacts(driver="weird"),))


def test_verdicts_show_what_was_compared() -> None:
    (verdict,) = evaluate((("NVIDIA_REQUIRE_CUDA", "cuda>=13 ARCH=9.0,brand=x"),), (H100.replace(brand=None),))
    assert [alternative.holds for alternative in verdict.alternatives] == [False, True]
    assert [(r.rule.describe(), r.observed, r.holds) for a in verdict.alternatives for r in a.rules] == [
        ("cuda>=13", "12.8", False),
        ("arch=9.0", "9.0", True),
        ("brand=x", None, True),
    ]


def test_needed_attributes() -> None:
    assert attributes(parse("cuda>=1,CUDA<2 Driver=3")) == {"cuda", "driver"}
    assert needed_attributes((("A", "cuda>=1"), ("B", "brand=x,arch=1"), ("C", ""))) == {"cuda", "brand", "arch"}


def test_facts_of_each_gpu_and_of_none() -> None:
    driver = Driver(version="550.1", cuda_version="12.4")
    gpu = Gpu(index=3, minor=3, uuid="GPU-x", bus_id="0000:01:00.0", brand="Tesla", architecture="7.5")
    (facts,) = collect_facts(driver, (gpu,))
    assert facts == HostFacts(driver="550.1", cuda="12.4", arch="7.5", brand="Tesla", label="GPU 3 (GPU-x)")
    assert collect_facts(driver, ()) == (HostFacts(driver="550.1", cuda="12.4"),)


versions = st.lists(st.integers(0, 2000), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
version_rules = st.builds(
    Rule,
    attribute=st.sampled_from(["cuda", "driver", "arch"]),
    operator=st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
    value=versions,
)
brand_rules = st.builds(
    Rule,
    attribute=st.just("brand"),
    operator=st.sampled_from(["=", "!="]),
    value=st.text(st.characters(exclude_characters=" ,<>=!"), min_size=1),
)
requirements = st.builds(
    Requirement,
    variable=st.just("V"),
    alternatives=st.lists(st.lists(version_rules | brand_rules, min_size=1, max_size=4).map(tuple), max_size=4).map(
        tuple
    ),
)
facts_strategy = st.builds(HostFacts, driver=versions, cuda=versions, arch=versions, brand=st.text(max_size=5))


@given(requirements)
def test_what_is_written_is_read_back(requirement: Requirement) -> None:
    assert parse(requirement.describe(), "V") == requirement


def satisfied(expression: str, facts: HostFacts) -> bool:
    return evaluate((("V", expression),), (facts,))[0].satisfied


@given(versions, versions)
def test_operators_negate_each_other(host: str, wanted: str) -> None:
    facts = HostFacts(cuda=host)
    for one, other in ((">=", "<"), ("<=", ">"), ("=", "!=")):
        assert satisfied(f"cuda{one}{wanted}", facts) is not satisfied(f"cuda{other}{wanted}", facts)


@given(requirements, requirements, facts_strategy)
def test_space_means_or(left: Requirement, right: Requirement, facts: HostFacts) -> None:
    if left.alternatives and right.alternatives:
        either = satisfied(left.describe(), facts) or satisfied(right.describe(), facts)
        assert satisfied(f"{left.describe()}  {right.describe()}", facts) is either


@given(st.lists(version_rules | brand_rules, min_size=1), facts_strategy)
def test_comma_means_and(rules: list[Rule], facts: HostFacts) -> None:
    each = [satisfied(rule.describe(), facts) for rule in rules]
    assert satisfied(",".join(rule.describe() for rule in rules), facts) is all(each)


@given(requirements)
def test_a_host_that_tells_nothing_satisfies_everything(requirement: Requirement) -> None:
    assert satisfied(requirement.describe(), HostFacts())


def refusal(expression: str) -> InputError | None:
    try:
        parse(expression, "V")
    except InputError as error:
        return error
    return None


@given(st.text(st.sampled_from("cudaCUDArivebn<>=!., 0123456789\n\tx")) | st.text())
def test_any_text_is_read_or_refused(expression: str) -> None:
    error = refusal(expression)
    if error is not None:
        assert str(error).isprintable()
        assert len(error.detail.split("\n")) == 2
