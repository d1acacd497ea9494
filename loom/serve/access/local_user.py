"""The only caller of a service that has no tokens: whoever can connect to it."""

import re
from collections.abc import Collection
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from loom.domain.core.errors import AccessDeniedError
from loom.serve.access.roles import Caller, Role

OWN_SITES: Final = frozenset({"same-origin", "none"})
"""What browsers say in `Sec-Fetch-Site` about requests of the page itself, and about addresses that a person enters."""


_HOST: Final = re.compile(r"(\[(?P<address>[^]]+)]|(?P<name>[^]\[:@/]+))(:[0-9]*)?")
"""The header `Host`: a name or an address, and maybe a port."""


class LocalUser:
    """An `Authenticator` that knows one person, who may do everything.

    A browser on this machine may be told by any site to send requests here. They name the site as their origin, or, if
    its name leads here, as their host. Requests for images and scripts name no origin, but say that they come from
    another site. All of these are refused. No site can have an address as its name, so addresses are allowed as hosts.
    """

    def __init__(self, name: str, *, hosts: Collection[str] = (), origins: Collection[str] = ()) -> None:
        """`hosts` are names of this service besides `localhost`. `origins` are other sites that may send requests. They
        are trusted as hosts, too.
        """
        self.person = Caller(name=name, role=Role.ADMIN)
        self._hosts = {"localhost", *hosts, *(urlsplit(origin).hostname for origin in origins)}
        self._origins = origins

    async def caller(self, headers: Headers) -> Caller:
        """See the protocol."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_own(host):
            raise AccessDeniedError(f"this service has no tokens, so it doesn't answer to the host {host!r}")
        if origin is not None and origin not in self._origins and origin.partition("//")[2] != host:
            raise AccessDeniedError(f"this service has no tokens, so it doesn't answer to pages of {origin}")
        if origin is None and headers.get("sec-fetch-site", "none") not in OWN_SITES:
            raise AccessDeniedError("this service has no tokens, so it doesn't answer to pages of other sites")
        return self.person

    def _is_own(self, host: str) -> bool:
        if (named := _HOST.fullmatch(host.lower())) is None:
            return False
        try:
            ip_address(named["address"] or named["name"])
        except ValueError:
            return named["name"] in self._hosts
        return True
