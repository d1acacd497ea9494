"""All exceptions. The documentation of `loom.domain.core.errors` shows their tree."""

from loom.domain.core.errors import *  # noqa: F403 - the classes are the public names of that module
