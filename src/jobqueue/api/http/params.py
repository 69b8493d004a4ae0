"""Define the query parameters of the routes. FastAPI checks them and refuses other parameters."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Annotated, Any, Literal, get_args, get_type_hints

from fastapi import Path, Query, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema
from starlette.responses import Response

from jobqueue.api.http.bodies import EPOCH, NAME, RFC3339
from jobqueue.core.job import MAX_PAGE, MAX_VERSION
from jobqueue.core.lifecycle import DEATH_WORDS, VIEWS, Reason
from jobqueue.core.schedule import MAX_NAME_LENGTH
from jobqueue.core.texts import MAX_ERROR_FILTER_LENGTH

# The type of a missing parameter. A URL cannot contain null, so the OpenAPI document hides it.
_Absent = SkipJsonSchema[None]
View = Literal["canonical", "scheduler", "producer"]


def _list_of(words: Iterable[str]) -> WithJsonSchema:
    """Return the schema of a list of words with commas. Lower case is also accepted."""
    word = f"({'|'.join(dict.fromkeys(words))})"
    return WithJsonSchema({"type": "string", "pattern": f"^{word}(,{word})*$"})


_STATES = [word for view in get_args(View) for word in VIEWS[view].values()]
_State = Annotated[str, _list_of(_STATES)]
_Reason = Annotated[str, _list_of(DEATH_WORDS)]
_AnyReason = Annotated[str, _list_of(Reason)]
_Queue = Annotated[str, WithJsonSchema({"type": "string", "pattern": NAME})]
_Token = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^(s[0-9a-f]{1,15})?$"})]
_Moment = Annotated[
    str, WithJsonSchema({"anyOf": [{"type": "number", **EPOCH}, {"type": "string", **RFC3339}]})
]
_Version = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_VERSION})]
_View = Annotated[View | None, WithJsonSchema({"type": "string", "enum": list(get_args(View))})]
_ERROR = Field(
    "",
    description="a part of the error text; case matters",
    json_schema_extra={"maxLength": MAX_ERROR_FILTER_LENGTH},
)
_SINCE = Field(
    None, description="ended at this time or later: RFC 3339 with an offset, or epoch seconds"
)
_UNTIL = Field(None, description="ended before this time, which is later than `since`")
_PAGE_TOKEN = Field("", description="`next_page_token` of the answer before")
JobId = Annotated[str, Path(json_schema_extra={"format": "uuid"})]


class _NoParams(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _JobParams(_NoParams):
    view: _View = Field(
        None, description="the vocabulary of states; by default the server's setting"
    )


class _Filter(_NoParams):
    queue: _Queue | _Absent = None
    type: str | _Absent = Field(None, description="the task's name")


class _DeathFilter(_Filter):
    reason: list[_Reason] = Field(
        default_factory=list,
        description="why they were dead-lettered, repeated or as a comma list: FAILURES (the"
        " job's own), ALL, or single reasons; by default ALL in a list, FAILURES in a retry",
    )
    error: str = _ERROR
    since: _Moment | _Absent = _SINCE
    until: _Moment | _Absent = _UNTIL


class _PageParams(_Filter, _JobParams):
    limit: int = Field(
        20, ge=1, le=MAX_PAGE, description="jobs on a page; large ones make it shorter"
    )
    page_token: _Token = _PAGE_TOKEN


class _DeadLetterParams(_DeathFilter, _PageParams):
    pass


class _RetryParams(_DeathFilter):
    page_token: _Token = _PAGE_TOKEN
    dry_run: bool = Field(False, description="count the matching jobs, change nothing")


class _GroupParams(_DeathFilter):
    pass


class _ListParams(_PageParams):
    status: list[_State] = Field(
        default_factory=list,
        description="states to show in the view's words, repeated or as a comma list",
    )
    reason: list[_AnyReason] = Field(
        default_factory=list,
        description="reason of the last change of state; several: repeat it, or use commas",
    )
    error: str = _ERROR
    since: _Moment | _Absent = _SINCE
    until: _Moment | _Absent = _UNTIL


class _WaitParams(_JobParams):
    timeout: float = Field(
        30.0, ge=0, allow_inf_nan=False, description="seconds; the server's limit caps it"
    )


class _EventParams(_JobParams):
    watch: bool = Field(False, description="stream the events until the job is finished")
    before_version: _Version | _Absent = Field(
        None,
        ge=1,
        le=MAX_VERSION,
        description="only transitions before this one; a stream sends all",
    )


class _DeleteQueueParams(_NoParams):
    force: bool = Field(False, description="dead-letter its unfinished jobs first")


class _ScheduleListParams(_NoParams):
    limit: int = Field(
        100, ge=1, le=MAX_PAGE, description="schedules on a page; many labels make it shorter"
    )
    page_token: str = Field(
        "",
        description="`next_page_token` of the answer before",
        json_schema_extra={"maxLength": MAX_NAME_LENGTH},
    )


JobParams = Annotated[_JobParams, Query()]
NoParams = Annotated[_NoParams, Query()]
DeadLetterParams = Annotated[_DeadLetterParams, Query()]
PageParams = Annotated[_PageParams, Query()]
RetryParams = Annotated[_RetryParams, Query()]
GroupParams = Annotated[_GroupParams, Query()]
ListParams = Annotated[_ListParams, Query()]
WaitParams = Annotated[_WaitParams, Query()]
EventParams = Annotated[_EventParams, Query()]
DeleteQueueParams = Annotated[_DeleteQueueParams, Query()]
ScheduleListParams = Annotated[_ScheduleListParams, Query()]


class QuickRoute(APIRoute):
    """A route whose query parameters FastAPI reads only if the URL has a query.

    Without a query all parameters have their defaults, and FastAPI would need a quarter of the
    request's time to find the defaults. The endpoint must have the argument ``params``. It may have
    ``request`` and text parameters of its path.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        read = super().get_route_handler()
        endpoint = self.endpoint
        kinds = get_type_hints(endpoint)
        del kinds["return"]
        defaults = kinds.pop("params")()
        takes_request = kinds.pop("request", None) is not None
        if self.dependencies or set(kinds.values()) - {str}:
            raise TypeError(f"{self.path}: QuickRoute supports params, request and path texts only")

        async def handler(request: Request) -> Response:
            if request.scope["query_string"]:
                return await read(request)
            given = {**request.path_params, "params": defaults}
            if takes_request:
                given["request"] = request
            response: Response = await endpoint(**given)
            return response

        return handler
