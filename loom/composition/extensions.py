"""Find the implementations of Loom's ports that the app and the enabled packages register."""

from dataclasses import replace

from loom.activities.extensions import AppEmbedder, app_store
from loom.app.extensions import Extensions
from loom.app.loom_app import LoomApp
from loom.app.registry import sources_of
from loom.composition.settings import Settings


def extensions_from(settings: Settings, app: LoomApp | None = None) -> Extensions:
    """Return all extensions, with their errors translated. `app` overrides the app named in the settings.

    Raises BadRequest if the app can't be loaded, or if two of them register the same.
    """
    found = Extensions()
    for source in sources_of(app if app is not None else settings.app, settings.packages).values():
        found = found.with_all(source.extensions)
    return replace(
        found,
        embedder=found.embedder and AppEmbedder(found.embedder),
        memory_store=found.memory_store and app_store(found.memory_store),
        knowledge_store=found.knowledge_store and app_store(found.knowledge_store),
    )
