"""Choose the bus: the app's own transport, the one in the settings, or Redis."""

from loom.activities.adapters.in_process_bus import InProcessBus
from loom.activities.adapters.nats.bus import NatsBus
from loom.activities.adapters.redis.bus import RedisBus
from loom.activities.adapters.redis.consumer import ANSWER_SECONDS
from loom.activities.bus import Transport
from loom.activities.encryption import PLAIN, Cipher
from loom.composition.client_settings import ClientSettings
from loom.composition.setting_values import IN_PROCESS


def transport_from(settings: ClientSettings, own: Transport | None = None, cipher: Cipher = PLAIN) -> Transport | None:
    """Return the bus's transport, or None if there is none. `own` is the app's own, which gets plain tasks. The caller
    must close it.

    Raises BadRequest if a package is missing.
    """
    if own is not None:
        return own
    if settings.bus_url is not None:
        return InProcessBus() if settings.bus_url == IN_PROCESS else NatsBus(settings.bus_url, cipher=cipher)
    if (url := settings.redis_url) is None:
        return None
    from loom.activities.adapters.redis.connection import RedisConnection  # noqa: PLC0415 - Redis is an extra

    return RedisBus(lambda: RedisConnection(url, answer_within=ANSWER_SECONDS, cipher=cipher))
