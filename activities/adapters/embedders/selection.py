"""Which embedder a setting names.

auto                            the offline one when it is installed, else none
offline                         the offline one
openai:MODEL                    a model of OpenAI, or of the server in OPENAI_BASE_URL
openai:MODEL@DIMENSION          one whose dimension Loom does not know
off                             none: memory and knowledge are searched by words alone
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
    """The embedder, which whoever asks for it closes; raises BadRequest for a setting that names none."""
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
        # Servers of one's own mostly want none, but the SDK does.
        api_key=api_key or "none",
        base_url=base_url,
        dimension=int(found["dimension"]) if found["dimension"] else None,
    )
