"""What the running workers have: agents, crews, tools and skills, as the workers report them."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from loom.domain.agents.worker_catalog import tool_summary
from loom.serve.access.roles import Operation
from loom.serve.routes.caller import Runs, needs

router = APIRouter(prefix="/v1", tags=["catalog"])


class Agents(BaseModel):
    """The agents and crews that the running workers serve."""

    agents: list[str]
    crews: list[str]
    models: list[str]
    """The default models of the workers."""


class Tools(BaseModel):
    """The tools of the running workers, as `loom tools list --json` shows them."""

    tools: list[dict[str, Any]]


class Skills(BaseModel):
    """The skills of all runs. Null if workspaces may provide others."""

    skills: list[str] | None


@router.get("/agents", openapi_extra=needs(Operation.READ_CATALOG))
async def list_agents(runs: Runs) -> Agents:
    """List the agents and crews."""
    reports = await runs.workers()
    return Agents(
        agents=sorted({name for report in reports for name in report.agents}),
        crews=sorted({name for report in reports for name in report.crews}),
        models=sorted({str(report.model["model"]) for report in reports if report.model.get("model")}),
    )


@router.get("/tools", openapi_extra=needs(Operation.READ_CATALOG))
async def list_tools(runs: Runs) -> Tools:
    """List the tools."""
    catalogs = reversed(await runs.catalogs())
    tools = {str(tool["name"]): tool_summary(tool) for catalog in catalogs for tool in catalog.tools}
    return Tools(tools=[tools[name] for name in sorted(tools)])


@router.get("/skills", openapi_extra=needs(Operation.READ_CATALOG))
async def list_skills(runs: Runs) -> Skills:
    """List the skills."""
    reports = await runs.workers()
    if any(report.skills is None for report in reports):
        return Skills(skills=None)
    return Skills(skills=sorted({name for report in reports for name in report.skills or ()}))
