"""The published JSON schema of CDI specs as a validator."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import referencing

SCHEMA_DIRECTORY = Path(__file__).parent.parent / "data" / "cdi-schema"


def load_validator() -> jsonschema.Draft7Validator:
    """Return a validator of whole documents."""
    loaded = {name: json.loads((SCHEMA_DIRECTORY / name).read_text()) for name in ("schema.json", "defs.json")}
    specification = referencing.jsonschema.DRAFT7
    registry: referencing.Registry[Any] = referencing.Registry().with_resources(
        (name, specification.create_resource(content)) for name, content in loaded.items()
    )
    return jsonschema.Draft7Validator(loaded["schema.json"], registry=registry)
