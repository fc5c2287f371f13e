"""A machine as a picture: its memory nodes, PCI addresses, GPUs with their MIG slices, NVSwitches and links.

Belongs here: SVG text, the same for the same machine. Does not belong here: words about a machine (show.py).
"""

from html import escape

from nvfakes.machine import Gpu, Machine
from nvfakes.mig import device_name

_WIDTH, _HEIGHT, _GAP, _MARGIN = 176, 132, 20, 28
_SWITCH_WIDTH, _SWITCH_HEIGHT = 72, 34
_COLOURS = ("#8ecae6", "#ffb703", "#90be6d", "#f28482", "#cdb4db", "#f6bd60", "#84a59d")
_LINK = "#3a7d44"


def as_svg(machine: Machine) -> str:
    """Return a picture of a machine as SVG."""
    nodes = sorted({gpu.numa_node for gpu in machine.gpus})
    columns = [gpu for node in nodes for gpu in machine.gpus if gpu.numa_node == node]
    linked = [gpu for gpu in columns if gpu.model.nvlinks]
    below = 110 if machine.switches or len(linked) > 1 else 20
    width = 2 * _MARGIN + max(len(columns), 2) * (_WIDTH + _GAP)
    height = 96 + _HEIGHT + below
    parts = [_text(_MARGIN, 24, _title(machine), size=15, weight="bold")]
    places = {gpu.uuid: _MARGIN + number * (_WIDTH + _GAP) for number, gpu in enumerate(columns)}
    for node in nodes:
        parts += _node(node, [places[gpu.uuid] for gpu in columns if gpu.numa_node == node])
    parts += _links(machine, [places[gpu.uuid] for gpu in linked], width, linked)
    for gpu in columns:
        parts += _gpu(gpu, places[gpu.uuid], 84)
    if not columns:
        parts.append(_text(_MARGIN, 70, "no NVIDIA GPU"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _title(machine: Machine) -> str:
    driver = machine.driver
    return f"{machine.name}: " + (f"driver {driver.version}, CUDA {driver.cuda}" if driver else "no driver")


def _text(x: int, y: int, text: str, *, size: int = 12, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}">{escape(text)}</text>'


def _box(x: int, y: int, width: int, height: int, fill: str, stroke: str = "#444") -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{fill}" stroke="{stroke}"/>'


def _line(x1: int, y1: int, x2: int, y2: int, colour: str, width: int = 1) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="{width}"/>'


def _node(node: int, places: list[int]) -> list[str]:
    """Draw a memory node as a bar over its GPUs, with a line to each for the PCI bus."""
    left, right = min(places), max(places) + _WIDTH
    name = f"memory node {node}" if node >= 0 else "no memory node"
    bar = [_box(left, 38, right - left, 22, "#e9ecef"), _text(left + 8, 53, name)]
    return bar + [_line(place + _WIDTH // 2, 60, place + _WIDTH // 2, 84, "#444") for place in places]


def _gpu(gpu: Gpu, x: int, y: int) -> list[str]:
    fill = "#f1faee" if gpu.present else "#dddddd"
    lines = [f"GPU {gpu.minor}", gpu.name.removeprefix("NVIDIA "), gpu.bus, gpu.uuid[:21] + "…"]
    parts = [_box(x, y, _WIDTH, _HEIGHT, fill)]
    for number, line in enumerate(lines):
        weight = "bold" if number == 0 else "normal"
        parts.append(_text(x + 8, y + 18 + 16 * number, line, size=12 if number < 2 else 10, weight=weight))
    return parts + (_slices(gpu, x + 8, y + 84, _WIDTH - 16) if gpu.mig_mode else [])


def _slices(gpu: Gpu, x: int, y: int, width: int) -> list[str]:
    """Draw the eight memory slices and the GPU instances that hold them."""
    step = width // 8
    parts = [_box(x + step * slot, y, step, 18, "white", "#bbb") for slot in range(8)]
    for number, instance in enumerate(sorted(gpu.instances, key=lambda item: item.start)):
        left, colour = x + step * instance.start, _COLOURS[number % len(_COLOURS)]
        parts.append(_box(left, y, step * instance.size, 18, colour))
        parts.append(_text(left + 2, y + 13, instance.profile.name.split(".")[0], size=9))
        names = "".join(f"\n{device_name(instance, compute)} {compute.uuid}" for compute in instance.compute)
        parts[-2] = parts[-2].replace(
            "/>", f"><title>{escape(f'GPU instance {instance.number}{names}')}</title></rect>"
        )
    parts.append(_text(x, y + 34, f"{len(gpu.mig_devices())} MIG devices", size=10))
    return parts


def _links(machine: Machine, places: list[int], width: int, gpus: list[Gpu]) -> list[str]:
    """Draw NVSwitches with a line from each GPU, or a line between GPUs that are linked directly."""
    bottom = 84 + _HEIGHT
    if not machine.switches:
        if len(places) < 2:
            return []
        links = gpus[0].model.nvlinks // (len(gpus) - 1)
        bars = [_line(place + _WIDTH // 2, bottom, place + _WIDTH // 2, bottom + 40, _LINK, 3) for place in places]
        ends = (places[0] + _WIDTH // 2, places[-1] + _WIDTH // 2)
        return [
            *bars,
            _line(ends[0], bottom + 40, ends[1], bottom + 40, _LINK, 3),
            _text(ends[0] + 8, bottom + 60, f"NV{links}"),
        ]
    count = len(machine.switches)
    step = max((width - 2 * _MARGIN) // count, 1)
    parts = []
    for number, switch in enumerate(machine.switches):
        x = _MARGIN + number * step + (step - min(_SWITCH_WIDTH, step - 6)) // 2
        middle = x + min(_SWITCH_WIDTH, step - 6) // 2
        parts += [_line(place + _WIDTH // 2, bottom, middle, bottom + 56, _LINK) for place in places]
        label = switch.bus if switch.on_pci and step >= _SWITCH_WIDTH else str(number)
        parts.append(_box(x, bottom + 56, min(_SWITCH_WIDTH, step - 6), _SWITCH_HEIGHT, "#d8f3dc"))
        parts.append(_text(x + 4, bottom + 77, label, size=9))
    return parts
