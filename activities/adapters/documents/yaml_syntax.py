"""Check YAML without building its values, so that tags and aliases cost nothing."""

import yaml


def parse_yaml(text: str) -> None:
    """Parse all documents. Raises ValueError if the text isn't YAML."""
    try:
        for _ in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            pass
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
