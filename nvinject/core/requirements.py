"""Requirements: what an image demands of the host (NVIDIA_REQUIRE_*), read and evaluated in one place for all modes.

Belongs here: the grammar, the evaluation, the wording of a refusal. Does not belong here: which variables hold a
requirement (request.py) and how the host's values are found (nvinject.host). The grammar:

    requirement = [ alternative ] { " " [ alternative ] }     one alternative that holds is enough
    alternative = [ rule ] { "," [ rule ] }                   every rule of it must hold
    rule        = attribute operator value
    attribute   = "cuda" | "driver" | "arch" | "brand"        in any case
    operator    = "=" | "!=" | "<" | "<=" | ">" | ">="        only "=" and "!=" for brand
    value       = number { "." number }                       for brand: any text without "," and " ", in any case

A requirement without a single rule holds, and so does a rule about a value that the host does not tell. Differences
from the C original: a lone `!` is no `!=`, the whole text must be well-formed even behind an alternative that holds, a
version has no empty components, and a rule may be of any length.
"""

from nvinject.core.model import Driver, Gpu
from nvinject.core.version import compare_versions, parse_version
from nvinject.errors import HostError, InputError, RequirementError, printable, quoted
from nvinject.record import Record

ATTRIBUTES = ("arch", "brand", "cuda", "driver")

# For each operator the results of compare_versions(host, wanted) that satisfy it.
_ORDERS = {"=": (0,), "!=": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}
_OPERATOR_CHARACTERS = "<>=!"
_HOW_TO_SKIP = "NVIDIA_DISABLE_REQUIRE=1 in the container's environment skips the check"


class Rule(Record):
    """One comparison; the attribute is in lower case, the value as written."""

    attribute: str
    operator: str
    value: str

    def describe(self) -> str:
        """Return the rule as it is written."""
        return f"{self.attribute}{self.operator}{self.value}"


class Requirement(Record):
    """A parsed requirement: alternatives of rules; `variable` is where it came from."""

    variable: str
    alternatives: tuple[tuple[Rule, ...], ...]

    def describe(self) -> str:
        """Return the requirement in its shortest spelling."""
        return " ".join(",".join(rule.describe() for rule in rules) for rules in self.alternatives)


class HostFacts(Record):
    """What the rules are held against, for one GPU; None where the host does not tell.

    `label` names the GPU to people.
    """

    driver: str | None = None
    cuda: str | None = None
    arch: str | None = None
    brand: str | None = None
    label: str = ""


class RuleResult(Record):
    """A rule, the host's value (None: not known, so the rule holds) and the outcome."""

    rule: Rule
    observed: str | None
    holds: bool


class AlternativeResult(Record):
    """The outcome of one alternative and of all its rules."""

    rules: tuple[RuleResult, ...]
    holds: bool


class Verdict(Record):
    """The outcome of one variable on one GPU; `label` is the label of the facts."""

    variable: str
    expression: str
    label: str
    satisfied: bool
    alternatives: tuple[AlternativeResult, ...]


def parse(expression: str, variable: str = "") -> Requirement:
    """Read a requirement: `[ alternative ] { " " [ alternative ] }`.

    Raises InputError: the message names the variable and the fault, the detail is the text with a caret under it.
    """
    source = _Source(expression, variable)
    alternatives = []
    while not source.at_end():
        rules = _parse_alternative(source)
        if rules:
            alternatives.append(rules)
        source.skip(" ")
    return Requirement(variable=variable, alternatives=tuple(alternatives))


def attributes(requirement: Requirement) -> frozenset[str]:
    """Return the names of the host's values that the requirement asks about."""
    return frozenset(rule.attribute for rules in requirement.alternatives for rule in rules)


def needed_attributes(requirements: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """Return what all (variable, expression) pairs ask about; raises InputError as parse does."""
    return frozenset(name for variable, text in requirements for name in attributes(parse(text, variable)))


def collect_facts(driver: Driver, gpus: tuple[Gpu, ...]) -> tuple[HostFacts, ...]:
    """Return the facts of every visible GPU; without a GPU those of the driver alone, so that it is still checked."""
    version = driver.version or None
    if not gpus:
        return (HostFacts(driver=version, cuda=driver.cuda_version),)
    return tuple(
        HostFacts(
            driver=version,
            cuda=driver.cuda_version,
            arch=gpu.architecture,
            brand=gpu.brand,
            label=f"GPU {gpu.index} ({gpu.uuid or gpu.model})",
        )
        for gpu in gpus
    )


def evaluate(requirements: tuple[tuple[str, str], ...], facts: tuple[HostFacts, ...]) -> tuple[Verdict, ...]:
    """Return a verdict for every (variable, expression) pair on every GPU.

    Raises InputError for a malformed requirement and HostError for a host's value that is no version.
    """
    parsed = [(parse(text, variable), text) for variable, text in requirements]
    return tuple(_judge(requirement, text, known) for requirement, text in parsed for known in facts)


def check(requirements: tuple[tuple[str, str], ...], facts: tuple[HostFacts, ...]) -> None:
    """Raise RequirementError unless every requirement holds on every GPU.

    The message has each failing variable with all its alternatives and the host's value of each failing rule. Raises
    InputError and HostError as evaluate does.
    """
    failed: dict[str, Verdict] = {}
    for verdict in evaluate(requirements, facts):
        if not verdict.satisfied:
            failed.setdefault(verdict.variable, verdict)
    if failed:
        raise RequirementError("; ".join(describe_refusal(verdict) for verdict in failed.values()), _remedy(failed))


def describe_refusal(verdict: Verdict) -> str:
    """Return a failed verdict as one clause: variable, GPU, and why each alternative fails."""
    where = f" on {verdict.label}" if verdict.label else ""
    reasons = " | ".join(_describe_failure(alternative) for alternative in verdict.alternatives)
    return f"{verdict.variable or 'the requirement'} is not satisfied{where}: {reasons}"


class _Source:
    """The text that is being read, the place reached, and how to complain about it."""

    __slots__ = ("position", "text", "variable")

    def __init__(self, text: str, variable: str) -> None:
        self.text = text
        self.variable = variable
        self.position = 0

    def at_end(self) -> bool:
        return self.position == len(self.text)

    def looking_at(self, characters: str) -> bool:
        return not self.at_end() and self.text[self.position] in characters

    def skip(self, character: str) -> None:
        if self.looking_at(character):
            self.position += 1

    def take_among(self, characters: str) -> str:
        start = self.position
        while self.looking_at(characters):
            self.position += 1
        return self.text[start : self.position]

    def take_until(self, characters: str) -> str:
        start = self.position
        while not self.at_end() and not self.looking_at(characters):
            self.position += 1
        return self.text[start : self.position]

    def complaint(self, rule_start: int, fault: int, problem: str, hint: str) -> InputError:
        shown = "".join(c if c.isprintable() else "?" for c in self.text)
        marks = " " * rule_start + "~" * (fault - rule_start) + "^"
        return InputError(
            f"{self.variable or 'the requirement'} is malformed at character {fault + 1}: {problem}",
            hint,
            f"{shown}\n{marks}",
        )


def _parse_alternative(source: _Source) -> tuple[Rule, ...]:
    """Read `[ rule ] { "," [ rule ] }`."""
    rules = []
    while not source.at_end() and not source.looking_at(" "):
        if not source.looking_at(","):
            rules.append(_parse_rule(source))
        source.skip(",")
    return tuple(rules)


def _parse_rule(source: _Source) -> Rule:
    """Read `attribute operator value`."""
    start = source.position
    attribute = _parse_attribute(source)
    operator = _parse_operator(source, start, attribute)
    return Rule(attribute=attribute, operator=operator, value=_parse_value(source, start, attribute, operator))


def _parse_attribute(source: _Source) -> str:
    """Read `"cuda" | "driver" | "arch" | "brand"`, in any case."""
    start = source.position
    name = source.take_until(_OPERATOR_CHARACTERS + ", ")
    if name.lower() in ATTRIBUTES:
        return name.lower()
    known = f"the attributes are {', '.join(ATTRIBUTES)}"
    if not name:
        raise source.complaint(
            start, start, f"no attribute before {quoted(source.take_among(_OPERATOR_CHARACTERS))}", known
        )
    raise source.complaint(start, start, f"unknown attribute {quoted(name)}", known)


def _parse_operator(source: _Source, rule_start: int, attribute: str) -> str:
    """Read `"=" | "!=" | "<" | "<=" | ">" | ">="`; brand has the first two only."""
    start = source.position
    operator = source.take_among(_OPERATOR_CHARACTERS)
    if not operator:
        hint = "a rule is attribute, operator and value without a space between them: a space means 'or'"
        raise source.complaint(rule_start, start, f"no operator after {quoted(attribute)}", hint)
    known = f"the operators are {', '.join(_ORDERS)}"
    if operator not in _ORDERS:
        raise source.complaint(rule_start, start, f"unknown operator {quoted(operator)}", known)
    if attribute == "brand" and operator not in {"=", "!="}:
        raise source.complaint(
            rule_start, start, f"brand cannot be compared with {quoted(operator)}", "brand knows = and != only"
        )
    return operator


def _parse_value(source: _Source, rule_start: int, attribute: str, operator: str) -> str:
    """Read `number { "." number }`, or any text for brand."""
    start = source.position
    value = source.take_until(", ")
    if not value:
        hint = "a rule is attribute, operator and value without a space between them: a space means 'or'"
        raise source.complaint(rule_start, start, f"no value after '{attribute}{operator}'", hint)
    if attribute != "brand":
        try:
            parse_version(value)
        except ValueError as error:
            fault = start + next((i for i, character in enumerate(value) if character not in "0123456789."), 0)
            raise source.complaint(rule_start, fault, str(error), "") from None
    return value


def _judge(requirement: Requirement, expression: str, facts: HostFacts) -> Verdict:
    alternatives = []
    for rules in requirement.alternatives:
        results = tuple(_apply(rule, facts) for rule in rules)
        alternatives.append(AlternativeResult(rules=results, holds=all(result.holds for result in results)))
    return Verdict(
        variable=requirement.variable,
        expression=expression,
        label=facts.label,
        satisfied=not alternatives or any(alternative.holds for alternative in alternatives),
        alternatives=tuple(alternatives),
    )


def _apply(rule: Rule, facts: HostFacts) -> RuleResult:
    observed: str | None = getattr(facts, rule.attribute)
    if observed is None:
        return RuleResult(rule=rule, observed=None, holds=True)
    if rule.attribute == "brand":
        holds = (observed.lower() == rule.value.lower()) == (rule.operator == "=")
    else:
        order = compare_versions(_host_version(rule.attribute, observed), parse_version(rule.value))
        holds = order in _ORDERS[rule.operator]
    return RuleResult(rule=rule, observed=observed, holds=holds)


def _host_version(attribute: str, observed: str) -> tuple[int, ...]:
    try:
        return parse_version(observed)
    except ValueError as error:
        raise HostError(f"the host's {attribute} version cannot be compared: {error}", _HOW_TO_SKIP) from None


def _describe_failure(alternative: AlternativeResult) -> str:
    failing = dict.fromkeys(
        f"{result.rule.attribute} is {result.observed}" for result in alternative.rules if not result.holds
    )
    return f"{printable(','.join(result.rule.describe() for result in alternative.rules))} ({', '.join(failing)})"


def _remedy(failed: dict[str, Verdict]) -> str:
    too_old = any(
        not result.holds and result.rule.attribute in {"cuda", "driver"} and result.rule.operator in {">", ">="}
        for verdict in failed.values()
        for alternative in verdict.alternatives
        for result in alternative.rules
    )
    update = "update the driver of the host or use an image for an older CUDA; " if too_old else ""
    return update + _HOW_TO_SKIP
