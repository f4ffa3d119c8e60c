import { randomBytes } from "node:crypto";
import pg from "pg";
import { afterAll, beforeAll, inject } from "vitest";

/** A database of its own for one test file. */
export interface TestDatabase {
  readonly url: string;
  /** For raw SQL. */
  readonly pool: pg.Pool;
  /** A separate session; the caller ends it. */
  connect(): Promise<pg.Client>;
  drop(): Promise<void>;
}

/** Clones the migrated template for this test file, and drops the clone at its end. */
export function useTestDatabase(): () => TestDatabase {
  let database: TestDatabase | undefined;
  beforeAll(async () => {
    database = await create(` TEMPLATE ${inject("template")}`);
  });
  afterAll(() => database?.drop());
  return () => {
    if (database === undefined) throw new Error("the test database is there from beforeAll on");
    return database;
  };
}

/** A database without anything in it; the caller drops it. */
export function emptyDatabase(): Promise<TestDatabase> {
  return create("");
}

async function create(from: string): Promise<TestDatabase> {
  const name = `${inject("template")}_${randomBytes(5).toString("hex")}`;
  await onServer((admin) => admin.query(`CREATE DATABASE ${name}${from}`));
  const url = new URL(inject("serverUrl"));
  url.pathname = `/${name}`;
  const pool = new pg.Pool({ connectionString: url.href, max: 20 });
  pool.on("error", () => undefined);
  return {
    url: url.href,
    pool,
    async connect() {
      const client = new pg.Client({ connectionString: url.href });
      client.on("error", () => undefined);
      await client.connect();
      return client;
    },
    async drop() {
      await pool.end();
      await onServer((admin) => admin.query(`DROP DATABASE ${name} WITH (FORCE)`));
    },
  };
}

async function onServer(work: (admin: pg.Client) => Promise<unknown>): Promise<void> {
  const admin = new pg.Client({ connectionString: inject("serverUrl") });
  await admin.connect();
  try {
    // CREATE DATABASE … TEMPLATE wants the template to itself; files start side by side.
    await admin.query("SELECT pg_advisory_lock(hashtext('holdfast test databases'))");
    await work(admin);
  } finally {
    await admin.end();
  }
}
