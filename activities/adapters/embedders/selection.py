"""Select the embedder that a setting names.

auto                            the offline embedder if it is installed, otherwise none
offline                         the offline embedder
openai:MODEL                    an OpenAI model, or a model on the server in OPENAI_BASE_URL
openai:MODEL@DIMENSION          a model whose dimension Loom doesn't know
off                             no embedder: search memory and knowledge by words only
"""

import re
from typing import Final

from loom.activities.adapters.embedders.offline import MISSING, OfflineEmbedder, is_installed
from loom.activities.adapters.embedders.openai_embeddings import OpenAIEmbedder
from loom.domain.core.errors import BadRequest

_OPENAI: Final = re.compile(r"openai:(?P<model>[^@\s]+)(?:@(?P<dimension>\d{1,5}))?")


def chosen_embedder(
    setting: str, *, api_key: str = "", base_url: str | None = None
) -> OfflineEmbedder | OpenAIEmbedder | None:
    """Return the embedder that the setting names. The caller must close the embedder. Raises BadRequest if the setting
    is unknown.
    """
    match setting:
        case "off":
            return None
        case "auto":
            return OfflineEmbedder() if is_installed() else None
        case "offline":
            if not is_installed():
                raise BadRequest(MISSING, field="LOOM_EMBEDDER")
            return OfflineEmbedder()
    if (found := _OPENAI.fullmatch(setting)) is None:
        raise BadRequest(
            f"LOOM_EMBEDDER is {setting!r}: it must be auto, offline, off, openai:MODEL or openai:MODEL@DIMENSION",
            field="LOOM_EMBEDDER",
        )
    return OpenAIEmbedder(
        found["model"],
        # Most self-hosted servers don't need a key, but the SDK requires one.
        api_key=api_key or "none",
        base_url=base_url,
        dimension=int(found["dimension"]) if found["dimension"] else None,
    )
