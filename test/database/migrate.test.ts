import { readFileSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import pg from "pg";
import { expect, test } from "vitest";
import { engineOpen, migrate, migrationStatus } from "../../src/database/migrate.ts";
import { emptyDatabase, useTestDatabase } from "../support/database.ts";

const database = useTestDatabase();

// What both a migration and schema.prisma can say of a table, as the database reports it. (Prisma cannot
// say that a list is never null.)
const CATALOGUE = `
  SELECT 'column ' || c.table_name || '.' || c.column_name || ' ' || c.udt_name
         || CASE WHEN c.is_nullable = 'NO' AND c.data_type <> 'ARRAY' THEN ' not null' ELSE '' END
         || coalesce(' default ' || c.column_default, '') AS line
  FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
  WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE' AND c.table_name <> '_prisma_migrations'
  UNION ALL
  SELECT 'index ' || replace(pg_get_indexdef(i.indexrelid), ' public.', ' ')
  FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid
  WHERE t.relnamespace = 'public'::regnamespace AND i.indpred IS NULL AND t.relname <> '_prisma_migrations'
  UNION ALL
  SELECT 'foreign key ' || k.conrelid::regclass || ' ' || pg_get_constraintdef(k.oid)
  FROM pg_constraint k WHERE k.contype = 'f' AND k.connamespace = 'public'::regnamespace
  ORDER BY 1`;

async function catalogue(url: string): Promise<string[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  const { rows } = await client.query<{ line: string }>(CATALOGUE);
  await client.end();
  return rows.map((row) => row.line);
}

test("schema.prisma and the migrations describe the same tables", async () => {
  const empty = await emptyDatabase();
  try {
    const { engine, close } = await engineOpen(empty.url);
    const { stdout } = await engine.diff({
      from: { tag: "empty" },
      to: {
        tag: "schemaDatamodel",
        files: [{ path: "schema.prisma", content: readFileSync("schema.prisma", "utf8") }],
      },
      script: true,
      exitCode: null,
      filters: { externalTables: [], externalEnums: [] },
    });
    await close();
    const client = new pg.Client({ connectionString: empty.url });
    await client.connect();
    await client.query(stdout ?? "");
    await client.end();
    const fromPrisma = await catalogue(empty.url);
    expect(fromPrisma.length).toBeGreaterThan(50);
    expect(await catalogue(database().url)).toEqual(fromPrisma);
  } finally {
    await empty.drop();
  }
});

test("five starts at once migrate once", async () => {
  const empty = await emptyDatabase();
  try {
    const results = await Promise.all(Array.from({ length: 5 }, () => migrate(empty.url)));
    const applied = results.map((result) => result.applied.length).filter((count) => count > 0);
    expect(applied).toEqual([(await migrationStatus(empty.url)).applied.length]);
    const client = new pg.Client({ connectionString: empty.url });
    await client.connect();
    const { rows } = await client.query(
      "SELECT migration_name FROM _prisma_migrations GROUP BY 1 HAVING count(*) > 1",
    );
    await client.end();
    expect(rows).toEqual([]);
  } finally {
    await empty.drop();
  }
});

test("the status names what is applied and what is pending, and changes nothing", async () => {
  const empty = await emptyDatabase();
  try {
    const before = await migrationStatus(empty.url);
    expect(before.applied).toEqual([]);
    expect(before.pending.length).toBeGreaterThan(3);
    await migrate(empty.url);
    expect(await migrationStatus(empty.url)).toEqual({ applied: before.pending, pending: [], failed: [] });
  } finally {
    await empty.drop();
  }
});

test("a migration that fails is named, with PostgreSQL's message, and is not counted as applied", async () => {
  const empty = await emptyDatabase();
  const directory = await mkdtemp(join(tmpdir(), "holdfast-migrations-"));
  try {
    for (const [name, sql] of [
      ["1_good", "CREATE TABLE a (id int); -- a comment; with a semicolon"],
      ["2_bad", "CREATE TABLE b (id int); SELECT nonsense;"],
    ] as const) {
      await mkdir(join(directory, name));
      await writeFile(join(directory, name, "migration.sql"), sql);
    }
    const url = pathToFileURL(`${directory}/`);
    await expect(migrate(empty.url, url)).rejects.toThrow(/2_bad[\s\S]*nonsense/);
    expect(await migrationStatus(empty.url, url)).toEqual({
      applied: ["1_good"],
      pending: [],
      failed: ["2_bad"],
    });
    const client = new pg.Client({ connectionString: empty.url });
    await client.connect();
    const { rows } = await client.query("SELECT to_regclass('b') AS b");
    expect(rows).toEqual([{ b: null }]);

    // It is not passed over in silence by the next start, though nothing else is pending.
    const again = await migrate(empty.url, url).catch((error: Error) => error);
    expect(again).toBeInstanceOf(Error);
    const { message } = again as Error;
    expect(message).toContain("2_bad was begun and did not finish");
    await client.query(message.slice(message.indexOf("UPDATE ")));
    await client.end();
    await writeFile(join(directory, "2_bad", "migration.sql"), "CREATE TABLE b (id int);");
    expect(await migrate(empty.url, url)).toEqual({ applied: ["2_bad"] });
    expect(await migrationStatus(empty.url, url)).toMatchObject({ pending: [], failed: [] });
  } finally {
    await rm(directory, { recursive: true });
    await empty.drop();
  }
});
