async def test_the_fixture_database_has_our_schema(conn):
    tables = await (
        await conn.execute("select table_name from information_schema.tables where table_schema = 'instep'")
    ).fetchall()
    assert {"source", "derivation", "target", "marker", "run", "exclusive"} <= {name for (name,) in tables}
