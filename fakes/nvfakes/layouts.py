"""Layouts: where distributions and driver containers keep the driver's files in user space.

Belongs here: one row per layout, and moving entries from the usual places (a Debian-like system with merged /usr) to
those of a row. Does not belong here: which files a driver has (driverfiles.py, tree.py) and their bytes.
"""

import fnmatch
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

USUAL = "usual"


@dataclass(frozen=True, slots=True)
class Farm:
    """A folder of links, one for each file of another folder whose name matches; each may lead through a third place.

    `via` is the beginning of that place, such as /etc/alternatives/nvidia--.
    """

    folder: str
    of: str
    pattern: str = "*"
    via: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """Folders by kind of file, all below `root`; {version}, {triplet} and {triplet32} are filled in.

    `cached`: the loader cache knows the libraries. `merged`: /bin and /lib are links into /usr. `own_nodes`: the
    driver's device nodes, and its daemons' sockets, are below `root` instead of at their usual places.
    """

    root: str = ""
    libraries: str = "/usr/lib/{triplet}"
    libraries32: str = "/usr/lib/{triplet32}"
    programs: str = "/usr/bin"
    firmware: str = "/usr/lib/firmware"
    share: str = "/usr/share"
    etc: str = "/etc"
    cached: bool = True
    merged: bool = True
    own_nodes: bool = False
    farms: tuple[Farm, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


_STORE = "/nix/store/6q0bc2ahnv4kzrd0zwx8bw1jgk9yc5ha-nvidia-x11-{version}-6.12.40"
_STORE_PROGRAMS = "/nix/store/7r1cd3bjowhgdj6rlp8xk3a2gvbn9yfm-nvidia-x11-{version}-6.12.40-bin"
_STORE_FIRMWARE = "/nix/store/9x3dq4cpkxm2b8zsfjyl6w0hvn7gr5ia-nvidia-x11-{version}-6.12.40-firmware"
_STORE_LINKS = "/nix/store/1w8fz5dqlynr3cahvk9mx7j2bpsg4q6y-graphics-drivers"

LAYOUTS: Mapping[str, Layout] = {
    USUAL: Layout(),
    # A driver container has a whole system of its own, with a loader cache made in it.
    "driver-container": Layout(root="/run/nvidia/driver", own_nodes=True),
    "driver-container-host-nodes": Layout(root="/run/nvidia/driver"),
    # Each branch in folders of its own, and links that update-alternatives(1) makes.
    "debian-split": Layout(
        libraries="/usr/lib/{triplet}/nvidia/current",
        programs="/usr/lib/nvidia/current",
        cached=False,
        farms=(
            Farm("/usr/bin", "/usr/lib/nvidia/current", via="/etc/alternatives/nvidia--"),
            Farm(
                "/usr/lib/{triplet}", "/usr/lib/{triplet}/nvidia/current", "libcuda.so.1", "/etc/alternatives/nvidia--"
            ),
            Farm(
                "/usr/lib/{triplet}",
                "/usr/lib/{triplet}/nvidia/current",
                "libnvidia-ml.so.1",
                "/etc/alternatives/nvidia--",
            ),
        ),
    ),
    "fedora": Layout(libraries="/usr/lib64", libraries32="/usr/lib"),
    # A folder of links into the store, file by file; no loader cache, and nothing at the places of other systems.
    "nixos": Layout(
        libraries=f"{_STORE}/lib",
        libraries32=f"{_STORE}-lib32/lib",
        programs=f"{_STORE_PROGRAMS}/bin",
        firmware=f"{_STORE_FIRMWARE}/lib/firmware",
        share=f"{_STORE}/share",
        etc=f"{_STORE}/etc",
        cached=False,
        merged=False,
        farms=(
            Farm(f"{_STORE_LINKS}/lib", f"{_STORE}/lib"),
            Farm(f"{_STORE_LINKS}/share", f"{_STORE}/share"),
            Farm(f"{_STORE_LINKS}/etc", f"{_STORE}/etc"),
            Farm("/run/current-system/sw/bin", f"{_STORE_PROGRAMS}/bin"),
            Farm("/run/current-system/firmware", f"{_STORE_FIRMWARE}/lib/firmware"),
        ),
        links=(("/run/opengl-driver", _STORE_LINKS),),
    ),
    # A glibc world beside musl, whose loader cache knows nothing of the driver.
    "talos": Layout(
        libraries="/usr/local/glibc/usr/lib",
        programs="/usr/local/bin",
        share="/usr/local/share",
        cached=False,
        merged=False,
    ),
    # Everything in one folder of the stateful partition, whose top is flat.
    "cos": Layout(
        root="/home/kubernetes/bin/nvidia",
        libraries="/lib64",
        programs="/bin",
        firmware="/firmware",
        share="/share",
        etc="",
        cached=False,
        merged=False,
    ),
}


class Places:
    """A layout for one version and architecture."""

    def __init__(self, layout: Layout, *, version: str, triplet: str, triplet32: str) -> None:
        """Take the layout and what its templates are filled with."""
        self.layout = layout
        self._words = {"{version}": version, "{triplet}": triplet, "{triplet32}": triplet32}
        usual = Layout()
        kinds = [kind for kind in _KINDS if triplet32 or kind != "libraries32"]
        self._moves = [(self._fill(getattr(usual, kind)), self._fill(getattr(layout, kind))) for kind in kinds]

    def _fill(self, text: str) -> str:
        for word, value in self._words.items():
            text = text.replace(word, value)
        return text

    def below_root(self, path: str) -> str:
        """Return where a file of the usual layout lies, as the layout's own root shows it."""
        for old, new in self._moves:
            if path.startswith(f"{old}/"):
                return f"{new}{path.removeprefix(old)}"
        return path

    def path(self, path: str) -> str:
        """Return where a file of the usual layout lies in the machine."""
        return f"{self.layout.root}{self.below_root(path)}"

    def node(self, path: str) -> str:
        """Return where a device node or a socket lies in the machine."""
        return f"{self.layout.root}{path}" if self.layout.own_nodes else path

    def links(self, files: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield path and text of the layout's links, given the paths of all files as its own root shows them."""
        known = sorted(files)
        for farm in self.layout.farms:
            folder, of = self._fill(farm.folder), self._fill(farm.of)
            for file in known:
                if not file.startswith(f"{of}/") or not fnmatch.fnmatchcase(os.path.basename(file), farm.pattern):
                    continue
                link = f"{folder}{file.removeprefix(of)}"
                middle = f"{farm.via}{os.path.basename(file)}" if farm.via else file
                yield f"{self.layout.root}{link}", middle
                if farm.via:
                    yield f"{self.layout.root}{middle}", file
        for link, target in self.layout.links:
            yield f"{self.layout.root}{self._fill(link)}", self._fill(target)


_KINDS = ("libraries32", "libraries", "programs", "firmware", "share", "etc")
