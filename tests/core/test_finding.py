"""Findings: their order and the worst of them."""

from nvinject.core.finding import ERROR, LAYERS, NOTE, WARNING, Finding, in_order, worst


def finding(layer: str, severity: str) -> Finding:
    return Finding(name="x", layer=layer, severity=severity, what="w", why="y", remedy="r")


def test_the_worst_severity_counts() -> None:
    """Error before warning before note; nothing without a finding."""
    assert worst(()) == ""
    assert worst((finding("bus", NOTE),)) == NOTE
    assert worst((finding("bus", WARNING), finding("cdi", ERROR), finding("cdi", NOTE))) == ERROR


def test_findings_follow_the_layers() -> None:
    """In the order in which people debug."""
    mixed = (finding("image", NOTE), finding("bus", NOTE), finding("nvml", NOTE), finding("bus", ERROR))
    assert [(one.layer, one.severity) for one in in_order(mixed)] == [
        ("bus", NOTE),
        ("bus", ERROR),
        ("nvml", NOTE),
        ("image", NOTE),
    ]
    assert LAYERS[0][0] == "bus"
