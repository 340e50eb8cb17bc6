"""Five hundred random mutations of real exports end in a ledger or in one clear line: never a traceback or a hang."""

import random
import shutil
import sqlite3
import time

import pytest
from census_data import OURS, PUBLIC, THEIRS, trace

from analysis import cli

MUTATIONS = 500
PARTS = 10  # test cases, so that a failure names its seeds
SLOW = 20.0  # seconds for one mutated trace: these take well under one


def tables(db) -> list[str]:
    return [t for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'ENUM%'")]


def columns(db, table: str) -> list[str]:
    return [r[1] for r in db.execute(f'PRAGMA table_info("{table}")')]


WATCHED = ("KERNEL", "RUNTIME", "NVTX", "GRAPH", "String", "META", "GPU", "MEM")


def pick(rng, db) -> tuple[str, str]:
    table = rng.choice([t for t in tables(db) if any(w in t for w in WATCHED)])
    return table, rng.choice(columns(db, table))


def drop_table(rng, db):
    db.execute(f'DROP TABLE "{pick(rng, db)[0]}"')


def drop_column(rng, db):
    table, column = pick(rng, db)
    keep = ", ".join(f'"{c}"' for c in columns(db, table) if c != column) or "1 AS nothing"
    db.execute(f'CREATE TABLE "mutated" AS SELECT {keep} FROM "{table}"')
    db.execute(f'DROP TABLE "{table}"')
    db.execute(f'ALTER TABLE "mutated" RENAME TO "{table}"')


VALUES = ("NULL", "'text'", "1.5", "-1", "0", "x'00ff'", "9223372036854775807", "-9223372036854775808", "1e300",
          "rowid", "CAST(x'ff' AS TEXT)", "2147483647", "4294967296 * (rowid % 3)", "abs(random() % 1000)")


def swap_values(rng, db):
    table, column = pick(rng, db)
    rewritable(db, table)
    where = rng.choice(("1", "rowid % 2", "rowid % 97 = 1", "rowid = 1"))
    db.execute(f'UPDATE "{table}" SET "{column}" = {rng.choice(VALUES)} WHERE {where}')


def swap_columns(rng, db):
    table, one = pick(rng, db)
    rewritable(db, table)
    two = rng.choice(columns(db, table))
    db.execute(f'UPDATE "{table}" SET "{one}" = "{two}", "{two}" = "{one}"') if one != two else None


def delete_rows(rng, db):
    table, _ = pick(rng, db)
    db.execute(f'DELETE FROM "{table}" WHERE {rng.choice(("1", "rowid % 2", "rowid > 3", "abs(random() % 10) < 7"))}')


def repeat_rows(rng, db):
    table, _ = pick(rng, db)
    rewritable(db, table)
    db.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}" LIMIT 500')


def rewritable(db, table: str) -> None:
    """Take the constraints off a table, so that anything can be put into it."""
    db.execute(f'CREATE TABLE "mutated" AS SELECT * FROM "{table}"')
    db.execute(f'DROP TABLE "{table}"')
    db.execute(f'ALTER TABLE "mutated" RENAME TO "{table}"')


def random_bytes(rng, path):
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 10, 300))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)


def truncate(rng, path):
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def zero_a_page(rng, path):
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data) // 4096) * 4096
    data[at : at + 4096] = bytes(4096)
    path.write_bytes(data)


IN_SQL = (drop_table, drop_column, swap_values, swap_values, swap_columns, delete_rows, repeat_rows)
IN_BYTES = (random_bytes, truncate, zero_a_page)
COMMANDS = (["ledger"], ["ledger", "--by", "layer"], ["ledger", "--steps", "lag", "--by", "shape"],
            ["ledger", "--steps", "none", "--by", "stream"], ["ledger", "--by", "range", "--json"], ["doctor"])


def mutate(rng, path):
    for _ in range(rng.choice((1, 1, 2, 3))):
        how = rng.choice(IN_SQL + IN_BYTES)
        if how in IN_BYTES:
            how(rng, path)
            return
        db = sqlite3.connect(path)
        try:
            with db:
                how(rng, db)
        finally:
            db.close()


@pytest.mark.parametrize("part", range(PARTS))
def test_mutations(part, tmp_path, capsys):
    sources = [n for n in OURS if "14b" not in n or "whole" in n] + [n for n in THEIRS if PUBLIC.exists()]
    outcomes = {0: 0, 2: 0}
    for seed in range(part * MUTATIONS // PARTS, (part + 1) * MUTATIONS // PARTS):
        rng = random.Random(seed)
        path = tmp_path / f"{seed}.sqlite"
        shutil.copy(trace(rng.choice(sources)), path)
        mutate(rng, path)
        command = rng.choice(COMMANDS)
        began = time.monotonic()
        try:
            code = cli.run([command[0], str(path), *command[1:]])
        except BaseException as err:
            raise AssertionError(f"seed {seed}: {command} let {type(err).__name__} through: {err}") from err
        said = capsys.readouterr()
        assert time.monotonic() - began < SLOW, f"seed {seed} took too long"
        assert code in outcomes, f"seed {seed}: exit code {code}"
        if code == 2:
            assert said.err.startswith("census: ") and said.err.count("\n") == 1, f"seed {seed}: {said.err}"
        outcomes[code] += 1
        path.unlink()
    assert outcomes[0] and outcomes[2]  # both ways out are taken
