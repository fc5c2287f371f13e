"""Which config.toml a command reads.

Belongs here: the choice between an option and the node's own file. Does not belong here: reading it (nvinject.config).
"""

import os

from nvinject.config import load_policy
from nvinject.configfile import find_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvinject.core.policy import Policy


def load_settings(option: str) -> "tuple[Policy, tuple[str, ...]]":
    """Return policy and warnings of the file that the option names, else of this node's configuration.

    Raises ConfigurationError, also where a named file does not exist.
    """
    path, required = (option, True) if option else find_config(os.environ)
    return load_policy(path, required=required)
