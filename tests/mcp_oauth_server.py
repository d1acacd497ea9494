"""An MCP server that requires OAuth, and its authorization server, in one process: `mcp_oauth_server.py PORT DIARY`.

It registers any client, signs everyone in at once, and gives out tokens that are valid for `--seconds`. The client
`robot` with the secret `r0b0t-s3cret` gets tokens without a person. The diary has one line for each grant.
"""

import argparse
import time
from pathlib import Path
from urllib.parse import urlencode
from uuid import uuid4

from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("diary", type=Path)
parser.add_argument("--seconds", type=float, default=3600)
options = parser.parse_args()
HERE = f"http://127.0.0.1:{options.port}"
valid: dict[str, float] = {}
"""When each token ends."""


class Tokens:
    """Knows the tokens."""

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return a token that is valid."""
        ends = valid.get(token, 0.0)
        return AccessToken(token=token, client_id="any", scopes=[]) if ends > time.time() else None


settings = AuthSettings.model_validate(
    {"issuer_url": HERE, "resource_server_url": f"{HERE}/mcp", "validate_token_resource": False}
)
server = MCPServer("guarded", log_level="CRITICAL", auth=settings, token_verifier=Tokens())


@server.tool()
def secret() -> str:
    """Tell it."""
    return "42"


@server.custom_route("/.well-known/oauth-authorization-server", methods=["GET"])  # type: ignore[untyped-decorator]
async def metadata(_: Request) -> Response:
    """What this authorization server can do."""
    ends = {"authorization": "authorize", "token": "token", "registration": "register"}
    return JSONResponse(
        {
            "issuer": HERE,
            **{f"{name}_endpoint": f"{HERE}/{path}" for name, path in ends.items()},
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
        }
    )


@server.custom_route("/register", methods=["POST"])  # type: ignore[untyped-decorator]
async def register(request: Request) -> Response:
    """Register any client."""
    asked = await request.json()
    return JSONResponse({**asked, "client_id": uuid4().hex, "token_endpoint_auth_method": "none"}, status_code=201)


@server.custom_route("/authorize", methods=["GET"])  # type: ignore[untyped-decorator]
async def authorize(request: Request) -> Response:
    """Sign everyone in."""
    given = request.query_params
    back = urlencode({"code": "c0de", "state": given["state"]})
    return RedirectResponse(f"{given['redirect_uri']}?{back}", status_code=302)


@server.custom_route("/token", methods=["POST"])  # type: ignore[untyped-decorator]
async def token(request: Request) -> Response:
    """Give a token."""
    form = await request.form()
    grant = str(form["grant_type"])
    with options.diary.open("a") as diary:
        diary.write(f"{grant}\n")
    robot = "Basic cm9ib3Q6cjBiMHQtczNjcmV0"
    if grant == "client_credentials" and request.headers.get("authorization") != robot:
        return JSONResponse({"error": "invalid_client"}, status_code=401)
    made = uuid4().hex
    valid[made] = time.time() + options.seconds
    fresh = {} if grant == "client_credentials" else {"refresh_token": "again"}
    return JSONResponse({"access_token": made, "token_type": "Bearer", "expires_in": int(options.seconds), **fresh})


server.run("streamable-http", host="127.0.0.1", port=options.port)
