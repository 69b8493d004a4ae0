"""Query parameters. FastAPI checks them; one that is not listed is refused, not ignored."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from jobqueue.core.job import MAX_PAGE

View = Literal["canonical", "scheduler", "producer"]
_VIEW = Field(None, description="the vocabulary of `status`; by default the server's setting")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _JobParams(_Strict):
    view: View | None = _VIEW


class _NoParams(_Strict):
    pass


_REASONS = (
    "why they were dead-lettered, repeated or as a comma list: FAILURES (the job's own),"
    " ALL, or single reasons"
)
_ERROR = Field("", description="is part of the error text, letter by letter")
_SINCE = Field(
    None, description="ended at this time or later: RFC 3339 with an offset, or epoch seconds"
)
_UNTIL = Field(None, description="ended before this time")


class _PageParams(_JobParams):
    queue: str | None = None
    type: str | None = Field(None, description="the task's name")
    limit: int = Field(
        20, ge=1, le=MAX_PAGE, description="jobs on a page; large ones make it shorter"
    )
    page_token: str = Field("", description="`next_page_token` of the page before")


class _DeadLetterParams(_PageParams):
    reason: list[str] = Field(default_factory=list, description=f"{_REASONS}; by default ALL")
    error: str = _ERROR
    since: str | None = _SINCE
    until: str | None = _UNTIL


class _RetryParams(_Strict):
    queue: str | None = None
    type: str | None = Field(None, description="the task's name")
    reason: list[str] = Field(default_factory=list, description=f"{_REASONS}; by default FAILURES")
    error: str = _ERROR
    since: str | None = _SINCE
    until: str | None = _UNTIL
    page_token: str = Field("", description="`next_page_token` of the answer before")
    dry_run: bool = Field(False, description="count what matches, change nothing")


class _ListParams(_PageParams):
    status: list[str] = Field(
        default_factory=list, description="states to show, repeated or as a comma list"
    )


class _WaitParams(_JobParams):
    timeout: float = Field(
        30.0, ge=0, allow_inf_nan=False, description="seconds; the server's limit caps it"
    )


class _EventParams(_JobParams):
    watch: bool = Field(False, description="stream the events until the job is finished")


class _DeleteQueueParams(_Strict):
    force: bool = Field(False, description="give up its unfinished jobs as dead letters first")


JobParams = Annotated[_JobParams, Query()]
NoParams = Annotated[_NoParams, Query()]
DeadLetterParams = Annotated[_DeadLetterParams, Query()]
PageParams = Annotated[_PageParams, Query()]
RetryParams = Annotated[_RetryParams, Query()]
ListParams = Annotated[_ListParams, Query()]
WaitParams = Annotated[_WaitParams, Query()]
EventParams = Annotated[_EventParams, Query()]
DeleteQueueParams = Annotated[_DeleteQueueParams, Query()]
