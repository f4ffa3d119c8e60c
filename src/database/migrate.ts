// Applies the hand-written migrations with Prisma's own schema engine in its WebAssembly form, which
// needs no binary of the platform. It records what it did in `_prisma_migrations`, so that
// `prisma migrate deploy` elsewhere agrees.
// Twice at once: an advisory lock lets one process migrate; the others wait and find nothing to do.
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath, pathToFileURL } from "node:url";
import { PrismaPg } from "@prisma/adapter-pg";
import { bindMigrationAwareSqlAdapterFactory, DriverAdapterError } from "@prisma/driver-adapter-utils";
import type { MigrationList, SchemaEngine } from "@prisma/schema-engine-wasm";
import pg from "pg";
import { Refused } from "../refusal.ts";

const MIGRATIONS = new URL("../../prisma/migrations/", import.meta.url);
const SCHEMA = new URL("../../schema.prisma", import.meta.url);
/** Any number that nothing else in this database uses as an advisory lock. */
const LOCK = 4_865_110_204;
const FILTERS = { externalTables: [], externalEnums: [] };

/** Which migrations a database has. */
export interface MigrationStatus {
  readonly applied: readonly string[];
  readonly pending: readonly string[];
  /** Begun and not finished; `migrate` refuses until somebody has looked. */
  readonly failed: readonly string[];
}

/**
 * Applies every pending migration, each once whoever else starts at the same time.
 * @param directory where the migrations are; the repository's own by default.
 * @throws Refused naming the migration that failed, now or earlier, with PostgreSQL's message.
 */
export async function migrate(url: string, directory: URL = MIGRATIONS): Promise<{ applied: string[] }> {
  const list = migrationsRead(directory);
  return withLock(url, async () => {
    const { pending, failed } = await statusRead(url, list);
    if (failed.length > 0) {
      throw new Refused(
        `Migration ${failed.join(", ")} was begun and did not finish. Find out how much of it the database has ` +
          "and undo that, then let it be tried again: " +
          `UPDATE _prisma_migrations SET rolled_back_at = now() WHERE migration_name = '${failed[0]}' AND finished_at IS NULL`,
      );
    }
    if (pending.length === 0) return { applied: [] };
    const { engine, failure, close } = await engineOpen(url);
    try {
      const { appliedMigrationNames } = await engine.applyMigrations({
        migrationsList: list,
        filters: FILTERS,
      });
      return { applied: appliedMigrationNames };
    } catch (error) {
      const stuck = await statusRead(url, list).catch(() => ({ failed: [] }));
      const message = failure()?.message ?? (error as Error).message;
      throw new Refused(`Migration ${stuck.failed[0] ?? pending[0]} failed: ${message}`, { cause: error });
    } finally {
      await close();
    }
  });
}

/** Reads which migrations are applied, pending and failed; changes nothing. */
export async function migrationStatus(url: string, directory: URL = MIGRATIONS): Promise<MigrationStatus> {
  return statusRead(url, migrationsRead(directory));
}

async function statusRead(url: string, list: MigrationList): Promise<MigrationStatus> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    const { rows: tables } = await client.query("SELECT to_regclass('_prisma_migrations') AS name");
    const { rows } =
      tables[0]?.name === null
        ? { rows: [] }
        : await client.query<{ name: string; finished: boolean }>(
            `SELECT migration_name AS name, finished_at IS NOT NULL AS finished FROM _prisma_migrations
             WHERE rolled_back_at IS NULL`,
          );
    const names = list.migrationDirectories.map((migration) => migration.path);
    const finished = new Set(rows.filter((row) => row.finished).map((row) => row.name));
    const failed = new Set(rows.filter((row) => !row.finished).map((row) => row.name));
    return {
      applied: names.filter((name) => finished.has(name)),
      pending: names.filter((name) => !finished.has(name) && !failed.has(name)),
      failed: [...failed].filter((name) => !finished.has(name)),
    };
  } finally {
    await client.end();
  }
}

async function withLock<T>(url: string, work: () => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: url });
  // A lost session shows in the next query, or in the engine's.
  client.on("error", () => undefined);
  await client.connect();
  try {
    // Asked again and again: a session that waits inside a statement keeps a snapshot, for whose end a
    // CREATE INDEX CONCURRENTLY of the migration would wait in turn.
    while (true) {
      const { rows } = await client.query<{ mine: boolean }>("SELECT pg_try_advisory_lock($1) AS mine", [
        LOCK,
      ]);
      if (rows[0]?.mine === true) break;
      await delay(100);
    }
    return await work();
  } finally {
    await client.end();
  }
}

function migrationsRead(directory: URL): MigrationList {
  const names = readdirSync(directory, { withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .map((entry) => entry.name)
    .sort();
  return {
    baseDir: fileURLToPath(directory),
    lockfile: { path: "migration_lock.toml", content: 'provider = "postgresql"\n' },
    shadowDbInitScript: "",
    migrationDirectories: names.map((name) => ({
      path: name,
      migrationFile: {
        path: "migration.sql",
        content: { tag: "ok", value: readFileSync(new URL(`${name}/migration.sql`, directory), "utf8") },
      },
    })),
  };
}

type Adapter = Awaited<ReturnType<PrismaPg["connect"]>>;

/**
 * The adapter cuts a script at every semicolon, also inside function bodies and comments. Sent whole,
 * as the engine's own binary does, it is one implicit transaction.
 */
class MigrationPg extends PrismaPg {
  /** The engine does not close what it opens. */
  readonly opened: Adapter[] = [];
  /** PostgreSQL's own words for the script that failed; the engine retells some of them. */
  failure: pg.DatabaseError | undefined;

  override async connect(): Promise<Adapter> {
    const adapter = await super.connect();
    this.opened.push(adapter);
    adapter.executeScript = async (script) => {
      try {
        await adapter.underlyingDriver().query(script);
      } catch (error) {
        this.failure = error as pg.DatabaseError;
        const { message, code, severity, detail, column, hint } = error as pg.DatabaseError;
        throw new DriverAdapterError({
          kind: "postgres",
          message,
          code: code ?? "XX000",
          severity: severity ?? "ERROR",
          detail,
          column,
          hint,
        });
      }
    };
    return adapter;
  }
}

type Engine = typeof import("@prisma/schema-engine-wasm");
let loaded: Promise<Engine> | undefined;

/** Prisma's schema engine on a database. `close` lets go of its connections; call it whatever happens. */
export async function engineOpen(
  url: string,
): Promise<{ engine: SchemaEngine; failure(): Error | undefined; close(): Promise<void> }> {
  loaded ??= engineLoad();
  const { SchemaEngine } = await loaded;
  const factory = new MigrationPg({ connectionString: url });
  const engine = await SchemaEngine.new(
    { datamodels: [["schema.prisma", readFileSync(SCHEMA, "utf8")]] },
    () => undefined,
    bindMigrationAwareSqlAdapterFactory(factory),
  );
  return {
    engine,
    failure: () => factory.failure,
    async close() {
      engine.free();
      for (const adapter of factory.opened) await adapter.underlyingDriver().end();
    },
  };
}

// The package's entry imports the .wasm as a module, which needs a flag or a bundler; the two files
// beside it do not, and are addressed by path since the package exports only its entry.
async function engineLoad(): Promise<Engine> {
  const entry = pathToFileURL(createRequire(import.meta.url).resolve("@prisma/schema-engine-wasm"));
  const glue = (await import(new URL("schema_engine_bg.js", entry).href)) as Engine & {
    __wbg_set_wasm(exports: WebAssembly.Exports): void;
  };
  const { instance } = await WebAssembly.instantiate(readFileSync(new URL("schema_engine_bg.wasm", entry)), {
    "./schema_engine_bg.js": glue as unknown as WebAssembly.ModuleImports,
  });
  glue.__wbg_set_wasm(instance.exports);
  (instance.exports["__wbindgen_start"] as () => void)();
  return glue;
}
