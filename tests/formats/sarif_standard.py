"""What SARIF 2.1.0 says of a file such as ours, written down from the standard (OASIS, 2020, with errata 1): which
properties an object may and must have, and what no schema says. The official schema may not be copied here, and no
package has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

# RFC 3986: a relative reference, whose first part has no colon, and an absolute one.
_RELATIVE = re.compile(r"(?:[\w.~!$&'()*+,;=@-]|%[0-9A-F]{2})+(?:/(?:[\w.~!$&'()*+,;=:@-]|%[0-9A-F]{2})*)*", re.ASCII)
_ABSOLUTE = re.compile(r"https://[\w./#-]+", re.ASCII)

Text = Annotated[str, StringConstraints(min_length=1)]
Level = Literal["none", "note", "warning", "error"]


class _Object(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", alias_generator=to_camel)


class Message(_Object):
    text: Text


class ArtifactLocation(_Object):
    uri: Annotated[str, StringConstraints(pattern=_RELATIVE.pattern)] | None = None
    uri_base_id: str | None = None
    description: Message | None = None


class Region(_Object):
    start_line: Annotated[int, Field(ge=1)]


class PhysicalLocation(_Object):
    artifact_location: ArtifactLocation
    region: Region


class LogicalLocation(_Object):
    fully_qualified_name: str
    kind: Literal["function"]


class Location(_Object):
    id: Annotated[int, Field(ge=-1)] = -1
    physical_location: PhysicalLocation
    logical_locations: list[LogicalLocation] = []
    message: Message | None = None


class ThreadFlowLocation(_Object):
    location: Location
    importance: Literal["important", "essential", "unimportant"] = "important"


class ThreadFlow(_Object):
    id: str
    message: Message
    locations: Annotated[list[ThreadFlowLocation], Field(min_length=1)]


class CodeFlow(_Object):
    thread_flows: Annotated[list[ThreadFlow], Field(min_length=1)]


class Suppression(_Object):
    kind: Literal["inSource", "external"]
    status: Literal["accepted", "underReview", "rejected"]
    justification: str
    location: Location | None = None


class Result(_Object):
    rule_id: str
    rule_index: Annotated[int, Field(ge=-1)]
    level: Level
    message: Message
    locations: Annotated[list[Location], Field(min_length=1)]  # GitHub shows no other
    related_locations: list[Location] = []
    code_flows: list[CodeFlow] = []
    partial_fingerprints: dict[str, str]
    baseline_state: Literal["new", "unchanged", "updated", "absent"] | None = None
    suppressions: list[Suppression]
    properties: dict[str, Any]


class Configuration(_Object):
    level: Level


class Rule(_Object):
    id: str
    name: str
    short_description: Message
    full_description: Message
    help: Message
    help_uri: Annotated[str, StringConstraints(pattern=_ABSOLUTE.pattern)] | None = None
    default_configuration: Configuration
    properties: dict[str, Any]


class Driver(_Object):
    name: str
    semantic_version: str | None = None
    rules: list[Rule]


class Tool(_Object):
    driver: Driver


class Notification(_Object):
    level: Level
    message: Message


class Invocation(_Object):
    execution_successful: bool
    exit_code: int
    tool_execution_notifications: list[Notification]


class Run(_Object):
    tool: Tool
    column_kind: Literal["utf16CodeUnits", "unicodeCodePoints"]
    original_uri_base_ids: dict[str, ArtifactLocation]
    invocations: list[Invocation]
    results: list[Result]
    properties: dict[str, Any]


class Log(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    schema_: str = Field(alias="$schema")
    version: Literal["2.1.0"]
    runs: Annotated[list[Run], Field(min_length=1, max_length=1)]


def held_to(text: str) -> Run:
    """The run in a file, which fails here where it is not as the standard says."""
    (run,) = Log.model_validate_json(text).runs
    rules = run.tool.driver.rules
    assert len({rule.id for rule in rules}) == len(rules)
    for result in run.results:
        assert rules[result.rule_index].id == result.rule_id
        ids = [one.id for one in result.related_locations]
        assert len(set(ids)) == len(ids)
        for flow in result.code_flows:
            _alike(flow.thread_flows)
        baselined = [one.baseline_state is not None for one in run.results]
        assert all(baselined) or not any(baselined), "either all results know of the baseline, or none does"
    for place in _places(run):
        where = place.physical_location.artifact_location
        assert where.uri_base_id in run.original_uri_base_ids
        assert where.uri is not None
        assert _RELATIVE.fullmatch(where.uri), where.uri
        assert ".." not in where.uri.split("/"), where.uri
    for rule in rules:
        assert rule.help_uri is None or _ABSOLUTE.fullmatch(rule.help_uri)
    return run


def _alike(flows: list[ThreadFlow]) -> None:
    assert all(flow.locations[-1].importance == "essential" for flow in flows)


def _places(run: Run) -> Iterator[Location]:
    for result in run.results:
        yield from (*result.locations, *result.related_locations)
        for flow in result.code_flows:
            for thread in flow.thread_flows:
                yield from (one.location for one in thread.locations)
        yield from (one.location for one in result.suppressions if one.location)
