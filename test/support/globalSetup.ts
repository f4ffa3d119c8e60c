// A real PostgreSQL for the whole run, and in it a migrated template that each test file clones.
import { randomBytes } from "node:crypto";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import type { TestProject } from "vitest/node";
import { embeddedOpen } from "../../src/database/embedded.ts";
import { migrate } from "../../src/database/migrate.ts";

declare module "vitest" {
  interface ProvidedContext {
    /** Connection string of a database on the server, for CREATE DATABASE. */
    serverUrl: string;
    /** Name of the migrated template; clones begin with it. */
    template: string;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const given = process.env["TEST_DATABASE_URL"];
  const embedded =
    given === undefined
      ? await embeddedOpen({
          dataDir: await mkdtemp(join(tmpdir(), "holdfast-test-")),
          exclusive: true,
          persistent: false,
          // Nothing here outlives the run.
          settings: {
            fsync: "off",
            synchronous_commit: "off",
            full_page_writes: "off",
            max_connections: "400",
          },
        })
      : null;
  const serverUrl = given ?? (embedded as { url: string }).url;
  const template = `holdfast_test_${randomBytes(5).toString("hex")}`;
  const admin = new pg.Client({ connectionString: serverUrl });
  await admin.connect();
  await admin.query(`CREATE DATABASE ${template}`);
  const url = new URL(serverUrl);
  url.pathname = `/${template}`;
  await migrate(url.href);
  project.provide("serverUrl", serverUrl);
  project.provide("template", template);
  return async () => {
    const { rows } = await admin.query<{ name: string }>(
      "SELECT datname AS name FROM pg_database WHERE starts_with(datname, $1)",
      [template],
    );
    for (const { name } of rows) await admin.query(`DROP DATABASE ${name} WITH (FORCE)`);
    await admin.end();
    await embedded?.stop();
  };
}
