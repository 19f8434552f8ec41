"""The tables of the ledger's SQLite file, and their versions."""

from __future__ import annotations

SCHEMA_VERSION = 7
#: For each older format, the SQL statements that upgrade a ledger to the next format. There is a test for each format.
UPGRADES: dict[int, str] = {}
TABLES = {"evaluations", "claims", "searches", "studies", "assessments", "texts"}
#: The tables that are not records of a class: the columns of the primary key, and the column that must be the same in
#: two ledgers that are merged.
ROWS = {
    "evaluations": (("calibration", "subject", "shard"), "samples"),
    "texts": (("calibration", "mask", "shard"), "texts"),
    "assessments": (("model", "mask", "assessment"), "result"),
}
#: The SQL statements that create the tables, if they do not exist.
CREATE_TABLES = """
CREATE TABLE IF NOT EXISTS evaluations (
    calibration TEXT NOT NULL,     -- fingerprint
    subject     TEXT NOT NULL,     -- a mask, {21,22,25}, or a statistic's name
    shard       INTEGER NOT NULL,  -- 0-based
    samples     BLOB NOT NULL,     -- little-endian float64: each sample's loss, or the statistic's rows
    checksum    INTEGER NOT NULL,  -- CRC-32 of the other columns
    PRIMARY KEY (calibration, subject, shard)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS claims (
    calibration TEXT NOT NULL,
    subject     TEXT NOT NULL,
    shard       INTEGER NOT NULL,
    owner       TEXT NOT NULL,     -- see claims.py
    PRIMARY KEY (calibration, subject, shard)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS searches (
    search_id     TEXT PRIMARY KEY,
    state         TEXT NOT NULL,   -- running | finished | stopped | failed | interrupted
    failure       TEXT,            -- why, if it failed
    updated       TEXT NOT NULL,   -- UTC, ISO 8601
    mlflow_run_id TEXT,
    checksum      INTEGER NOT NULL,
    fingerprints  TEXT NOT NULL,   -- JSON: of the model, the text and the whole calibration
    config        TEXT NOT NULL,   -- JSON, resolved
    result        TEXT NOT NULL    -- JSON: null before there is one
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS studies (
    study_id      TEXT PRIMARY KEY,
    updated       TEXT NOT NULL,   -- UTC, ISO 8601
    mlflow_run_id TEXT,
    checksum      INTEGER NOT NULL,
    config        TEXT NOT NULL,   -- JSON, resolved
    cells         TEXT NOT NULL,   -- JSON: each cell's labels and its search
    facts         TEXT NOT NULL,   -- JSON
    assessed      TEXT NOT NULL    -- JSON
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS assessments (
    model      TEXT NOT NULL,      -- fingerprint of the dense model
    mask       TEXT NOT NULL,      -- {21,22,25}
    assessment TEXT NOT NULL,      -- fingerprint of what is assessed, see assessments.py
    result     TEXT NOT NULL,      -- JSON
    checksum   INTEGER NOT NULL,
    PRIMARY KEY (model, mask, assessment)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS texts (
    calibration TEXT NOT NULL,     -- fingerprint
    mask        TEXT NOT NULL,     -- {21,22,25}
    shard       INTEGER NOT NULL,  -- 0-based
    texts       BLOB NOT NULL,     -- zlib of JSON: what was generated for each sample
    checksum    INTEGER NOT NULL,
    PRIMARY KEY (calibration, mask, shard)
) WITHOUT ROWID;
"""
