"""The tables of a database of memories, the same in SQLite and PostgreSQL but for the names of types.

What is stored: one record per memory, row, payload, setting and receipt, one per row and source where a row consists of
several sources (`shares`), one per class (`classes`), and the ids of removed rows for readers that follow.
Records carry a checksum of their content, because neither SQLite nor most disks notice a single flipped bit.
"""

from __future__ import annotations

import hashlib
import secrets

from apl.store.errors import OtherSchema

SCHEMA_VERSION = 5
"""Raise it when the tables change. Other versions are not read: an exported archive carries a memory over."""
TABLES = ("memories", "rows", "payloads", "shares", "classes", "removed", "settings", "receipts")

# Payloads have a table of their own, so that loading all keys does not read past all pictures.
_SCHEMA = """
CREATE TABLE memories (
    id {serial}, name {text} NOT NULL UNIQUE, identity {text} NOT NULL, fingerprint {text} NOT NULL,
    width {integer} NOT NULL, metric {text} NOT NULL, keep_sources {integer} NOT NULL, created {real} NOT NULL,
    next_id {integer} NOT NULL, generation {integer} NOT NULL, state {text},
    checksum {integer} NOT NULL){strict};
CREATE TABLE rows (
    memory {integer} NOT NULL{reference}, id {integer} NOT NULL, label {text} NOT NULL, surprise_nats {real} NOT NULL,
    written_at {real} NOT NULL, source {text}, key {vector} NOT NULL, count {integer} NOT NULL,
    has_shares {integer} NOT NULL, generation {integer} NOT NULL, checksum {integer} NOT NULL,
    PRIMARY KEY (memory, id)){strict};
CREATE INDEX rows_generation ON rows (memory, generation);
CREATE INDEX rows_label ON rows (memory, label);
CREATE INDEX rows_source ON rows (memory, source) WHERE source IS NOT NULL;
CREATE TABLE payloads (
    memory {integer} NOT NULL{reference}, id {integer} NOT NULL, payload {bytes} NOT NULL, checksum {integer} NOT NULL,
    PRIMARY KEY (memory, id)){strict};
CREATE TABLE shares (
    memory {integer} NOT NULL{reference}, id {integer} NOT NULL, source {text} NOT NULL, total {bytes} NOT NULL,
    count {integer} NOT NULL, checksum {integer} NOT NULL, PRIMARY KEY (memory, id, source)){strict};
CREATE INDEX shares_source ON shares (memory, source);
CREATE TABLE classes (
    memory {integer} NOT NULL{reference}, label {text} NOT NULL, rows {integer} NOT NULL, examples {integer} NOT NULL,
    total {sum} NOT NULL, first_id {integer} NOT NULL, generation {integer} NOT NULL,
    PRIMARY KEY (memory, label)){strict};
CREATE INDEX classes_generation ON classes (memory, generation);
CREATE TABLE removed (
    memory {integer} NOT NULL{reference}, generation {integer} NOT NULL, id {integer} NOT NULL,
    PRIMARY KEY (memory, generation, id)){strict};
CREATE TABLE settings (
    memory {integer} NOT NULL{reference}, name {text} NOT NULL, value {text} NOT NULL, checksum {integer} NOT NULL,
    PRIMARY KEY (memory, name)){strict};
CREATE TABLE receipts (
    memory {integer} NOT NULL{reference}, name {text} NOT NULL, value {text} NOT NULL, generation {integer} NOT NULL,
    checksum {integer} NOT NULL, PRIMARY KEY (memory, name)){strict};
CREATE INDEX receipts_generation ON receipts (memory, generation);
"""
SQLITE_SCHEMA = _SCHEMA.format(
    **{"serial": "INTEGER PRIMARY KEY", "text": "TEXT", "integer": "INTEGER", "real": "REAL", "bytes": "BLOB"},
    **{"vector": "BLOB", "sum": "BLOB", "reference": "", "strict": " STRICT"},
)
# `key` has no fixed length, so that memories of several encoders fit into one table.
POSTGRES_SCHEMA = _SCHEMA.format(
    **{"serial": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "text": "text", "integer": "bigint"},
    **{"real": "double precision", "bytes": "bytea", "vector": "vector", "sum": "double precision[]", "strict": ""},
    reference=" REFERENCES memories ON DELETE CASCADE",
)


def receipt_name(key: str) -> str:
    """What is stored of a receipt's key: it may name a class or a source, which may have to be forgotten."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def new_identity() -> str:
    return secrets.token_hex(16)


def other_schema(place: str, version: int) -> OtherSchema:
    """The error for tables that another version of apl made."""
    later = version > SCHEMA_VERSION
    bridge = "export it there with `apl memory export` and import the archive here"
    return OtherSchema(
        f"{place} was written by {'a later' if later else 'an earlier'} version of apl (schema {version}, this one reads "
        f"{SCHEMA_VERSION}): {'upgrade apl' if later else bridge}; nothing was touched"
    )
