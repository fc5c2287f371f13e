"""The host's ldconfig: writes the loader caches of images and driver roots, and reads those that injectors leave.

Belongs here: calling it. Does not belong here: what should be in a cache (expect.py).
"""

import subprocess
from pathlib import Path

# Not looked up: an ordinary user's PATH lacks the folder, on every distribution with this loader.
PROGRAM = "/sbin/ldconfig"
SECONDS = 20


def write_cache(root: Path) -> None:
    """Write the cache of a root file system; raises RuntimeError with what ldconfig says."""
    command = [PROGRAM, "-r", str(root)]
    # It changes its root, which an ordinary user may do in a user namespace only.
    for start in (command, ["unshare", "--map-root-user", *command]):
        done = subprocess.run(start, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode == 0:
            return
    raise RuntimeError(f"ldconfig writes no cache in {root}: {done.stderr.strip()}")


def read_cache(path: Path) -> list[str]:
    """Return the entries of a cache in file order as `SONAME (bits) path`, one saying why where it is unreadable."""
    command = [PROGRAM, "-p", "-C", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if result.returncode:
        return [f"unreadable {result.stderr.strip()}"]
    entries = []
    for line in result.stdout.splitlines():
        name, arrow, target = line.strip().partition(" => ")
        if arrow:
            soname, _, kind = name.partition(" ")
            entries.append(f"{soname} ({'64' if '64' in kind else '32'}) {target}")
    return entries
