"""Read a bucket's record of usage into SQLite: every request once, whoever dies when.

    python examples/usage_biller.py nats://127.0.0.1:4222 default usage.sqlite

It runs until it is stopped and goes on where it was. With accounts (`kvmesh nats-accounts --biller
default/biller`) name the file with its seed as fourth argument: nats-py needs `pip install nkeys`
for it. JetStream delivers each batch at least once: a batch's id is stored in the same transaction
as its rows, and then it is acknowledged.
"""

import asyncio
import json
import sqlite3
import sys

import nats
from nats.errors import TimeoutError as NothingNew
from nats.js.client import JetStreamContext

NAMESPACE, NAME = "kvmesh", "biller"
TABLES = """
CREATE TABLE IF NOT EXISTS batches (id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS usage (
    day TEXT, tenant TEXT, key TEXT, model TEXT, requests INT, errors INT,
    prompt_tokens INT, cached_tokens INT, output_tokens INT, engine_ms INT,
    PRIMARY KEY (day, tenant, key, model));
"""
ADD = """
INSERT INTO usage VALUES (date(:until, 'unixepoch'), :tenant, :key, :model, :requests, :errors,
    :prompt_tokens, :cached_tokens, :output_tokens, :engine_ms)
ON CONFLICT DO UPDATE SET requests = requests + :requests, errors = errors + :errors,
    prompt_tokens = prompt_tokens + :prompt_tokens, cached_tokens = cached_tokens + :cached_tokens,
    output_tokens = output_tokens + :output_tokens, engine_ms = engine_ms + :engine_ms
"""


def store(database: sqlite3.Connection, data: bytes) -> None:
    """Add a batch, unless it is there."""
    batch = json.loads(data)
    with database:
        known = database.execute("INSERT OR IGNORE INTO batches VALUES (?)", (batch["id"],))
        if known.rowcount:
            rows = [row["who"] | row["usage"] | {"until": batch["until"]} for row in batch["rows"]]
            database.executemany(ADD, rows)


async def follow(jetstream: JetStreamContext, bucket: str, database: sqlite3.Connection) -> None:
    """Store what the stream has and what comes."""
    stream, subject = f"{NAMESPACE}_usage_{bucket}", f"{NAMESPACE}.use.{bucket}.*"
    batches = await jetstream.pull_subscribe(subject, durable=NAME, stream=stream)
    while True:
        try:
            messages = await batches.fetch(64, timeout=5)
        except NothingNew:
            continue
        for message in messages:
            store(database, message.data)
            await message.ack_sync()


async def main(url: str, bucket: str, path: str, seed_file: str = "") -> None:
    """Follow a bucket until stopped."""
    database = sqlite3.connect(path)
    database.executescript(TABLES)
    inbox = f"_INBOX.biller.{bucket}.{NAME}".encode()
    login = {"nkeys_seed": seed_file} if seed_file else {}
    connection = await nats.connect(url, inbox_prefix=inbox, **login)
    try:
        await follow(connection.jetstream(), bucket, database)
    finally:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
