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


class _DeadLetterParams(_JobParams):
    queue: str | None = None
    type: str | None = Field(None, description="the task's name")
    limit: int = Field(20, ge=1, le=MAX_PAGE)
    page_token: str = Field("", description="`next_page_token` of the page before")


class _ListParams(_DeadLetterParams):
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
ListParams = Annotated[_ListParams, Query()]
WaitParams = Annotated[_WaitParams, Query()]
EventParams = Annotated[_EventParams, Query()]
DeleteQueueParams = Annotated[_DeleteQueueParams, Query()]
