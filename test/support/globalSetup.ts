// A real PostgreSQL for the whole run, and in it a migrated template that each test file clones.
import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync, readFileSync, rmSync } from "node:fs";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import type { TestProject } from "vitest/node";
import { embeddedOpen } from "../../src/database/embedded.ts";
import { migrate } from "../../src/database/migrate.ts";
import { type Pooler, pgbouncerStart } from "./pgbouncer.ts";

declare module "vitest" {
  interface ProvidedContext {
    /** Connection string of a database on the server, for CREATE DATABASE. */
    serverUrl: string;
    /** Name of the migrated template; clones begin with it. */
    template: string;
    /** Address of the PgBouncer that every API goes through (TEST_PGBOUNCER=1); null: none. */
    pooler: string | null;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const given = process.env["TEST_DATABASE_URL"];
  const dataDir = given === undefined ? await mkdtemp(join(tmpdir(), "holdfast-test-")) : null;
  const template = `holdfast_test_${randomBytes(5).toString("hex")}`;
  let cleaned: Promise<void> | undefined;
  // The embedded server has a session of its own, which no Ctrl-C reaches, and after a signal vitest
  // ends without its teardown and without waiting for anything.
  process.once("SIGHUP", () => process.exit(129));
  process.once("exit", () => {
    if (cleaned !== undefined) return;
    if (dataDir === null) databasesDrop(given as string, template);
    else serverStop(dataDir);
  });

  const embedded =
    dataDir === null
      ? null
      : await embeddedOpen({
          dataDir,
          exclusive: true,
          persistent: false,
          // Nothing here outlives the run.
          settings: {
            fsync: "off",
            synchronous_commit: "off",
            full_page_writes: "off",
            max_connections: "400",
          },
        });
  const serverUrl = given ?? (embedded as { url: string }).url;
  const admin = new pg.Client({ connectionString: serverUrl });
  // Another session's end must not end the run; the next query tells.
  admin.on("error", () => undefined);

  let pooler: Pooler | null = null;
  const clean = async () => {
    try {
      await pooler?.stop();
      // An embedded server's databases go with its directory.
      if (embedded === null) {
        const { rows } = await admin.query<{ name: string }>(
          "SELECT datname AS name FROM pg_database WHERE starts_with(datname, $1)",
          [template],
        );
        for (const { name } of rows) await admin.query(`DROP DATABASE ${name} WITH (FORCE)`);
      }
    } finally {
      await admin.end().catch(() => undefined);
      await embedded?.stop();
    }
  };
  const teardown = () => {
    cleaned ??= clean();
    return cleaned;
  };
  try {
    await admin.connect();
    await admin.query(`CREATE DATABASE ${template}`);
    const url = new URL(serverUrl);
    url.pathname = `/${template}`;
    await migrate(url.href);
    if (process.env["TEST_PGBOUNCER"] === "1") pooler = await pgbouncerStart(serverUrl);
  } catch (error) {
    await teardown().catch(() => undefined);
    throw error;
  }
  project.provide("serverUrl", serverUrl);
  project.provide("template", template);
  project.provide("pooler", pooler?.address ?? null);
  return teardown;
}

/** Stops the server and removes its directory without giving way to anything else. */
function serverStop(dataDir: string): void {
  const lock = join(dataDir, "postgres", "postmaster.pid");
  const wait = new Int32Array(new SharedArrayBuffer(4));
  try {
    process.kill(Number.parseInt(readFileSync(lock, "utf8"), 10), "SIGINT");
    for (let tries = 0; tries < 100 && existsSync(lock); tries++) Atomics.wait(wait, 0, 0, 50);
  } catch {
    // It has ended already.
  }
  rmSync(dataDir, { recursive: true, force: true, maxRetries: 5 });
}

/** Drops this run's databases in a process of its own, since this one is ending. */
function databasesDrop(serverUrl: string, template: string): void {
  const script = `
    import pg from "pg";
    const admin = new pg.Client({ connectionString: process.argv[1] });
    await admin.connect();
    const { rows } = await admin.query("SELECT datname AS name FROM pg_database WHERE starts_with(datname, $1)", [process.argv[2]]);
    for (const { name } of rows) await admin.query("DROP DATABASE " + name + " WITH (FORCE)");
    await admin.end();`;
  spawnSync(process.execPath, ["--input-type=module", "--eval", script, serverUrl, template], {
    cwd: import.meta.dirname,
    timeout: 30_000,
  });
}
