"""How the paths are described to those who generate clients: parameters, bodies that a path reads by itself, errors."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Path, Query

from apl.service import responses
from apl.service.settings import BATCH, LABEL_CHARACTERS, MOST_TOP, SOURCE_CHARACTERS

NAME_PATTERN = "^[A-Za-z0-9._-]{1,64}$"
Name = Annotated[str, Path(description="The memory's name.", json_schema_extra={"pattern": NAME_PATTERN})]
Top = Annotated[int, Query(ge=1, le=MOST_TOP, description="How many of the likeliest classes to name.")]
Anyway = Annotated[bool, Query(description="Take a photograph although the model knows drawings.")]
RowId = Annotated[int, Path(ge=1, lt=2**63)]
RetryKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="Any text of your choice. A repeated request with the same key gets the same answer and writes "
        "nothing; the latest 1000 keys of a memory are remembered, over restarts too.",
    ),
]


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    common = (401, 403, 413, 422, 429, 503)
    return {status: {"model": responses.Error} for status in sorted({*common, *statuses})}


def body(one: type, *, form: bool = True, many: bool = False, labelled: bool = False) -> dict[str, Any]:
    """The request body of a path that reads it by itself: JSON, and perhaps the same as a form."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{one.__name__}"}}}
    if form:
        text, file = {"type": "string", "minLength": 1}, {"type": "string", "contentMediaType": "image/png"}
        fields: dict[str, Any] = {"image": file}
        if labelled:
            fields["label"] = {**text, "maxLength": LABEL_CHARACTERS}
            fields["source"] = {**text, "maxLength": SOURCE_CHARACTERS}
        fields["ink"] = {"type": "string", "enum": ["auto", "dark", "light"]}
        if many:
            fields = {name: {"type": "array", "items": kind, "maxItems": BATCH} for name, kind in fields.items()}
        required = ["image", "label"] if labelled else ["image"]
        schema = {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
        content["multipart/form-data"] = {"schema": schema}
    return {"requestBody": {"required": True, "content": content}}
