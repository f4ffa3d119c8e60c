import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { apiTokenEnsure, secretNew } from "../access/tokens.ts";
import type { Config } from "../config.ts";
import { type Database, databaseOpen } from "../database/client.ts";
import { type EmbeddedDatabase, embeddedOpen } from "../database/embedded.ts";
import { migrate, migrationStatus } from "../database/migrate.ts";
import { secretFileEnsure } from "../database/secretFile.ts";
import type { Log } from "../logging.ts";
import { Refused } from "../refusal.ts";

/** The database that the configuration names, with the embedded server beneath it if there is one. */
export interface OpenedDatabase extends Database {
  readonly url: string;
}

/** Pending migrations, and a start that may not apply them. */
export class MigrationsPending extends Refused {
  override readonly name = "MigrationsPending";
}

/**
 * Finds or starts the configured database.
 * @param exclusive true for a server: a second one on the same data directory is refused.
 * @throws EmbeddedDatabaseInUse, or the driver's error when the database cannot be reached.
 */
export async function databaseFind(
  config: Config,
  exclusive: boolean,
): Promise<{ url: string; embedded: EmbeddedDatabase | null }> {
  if (config.databaseUrl !== null) return { url: config.databaseUrl, embedded: null };
  const embedded = await embeddedOpen({ dataDir: config.dataDir, exclusive });
  return { url: embedded.url, embedded };
}

/**
 * Opens the configured database, migrated: pending migrations are applied, or refused with
 * HOLDFAST_MIGRATE=0.
 * @throws MigrationsPending
 */
export async function databaseReady(config: Config, log: Log, exclusive: boolean): Promise<OpenedDatabase> {
  const { url, embedded } = await databaseFind(config, exclusive);
  try {
    if (config.migrate) {
      const { applied } = await migrate(url);
      if (applied.length > 0) log.info({ applied }, "migrations applied");
    } else {
      const { pending, failed } = await migrationStatus(url);
      const missing = [...failed, ...pending];
      if (missing.length > 0) {
        throw new MigrationsPending(
          `The database lacks ${missing.length} migrations (${missing.join(", ")}). Run \`npm run holdfast -- migrate\`, or start without HOLDFAST_MIGRATE=0.`,
        );
      }
    }
  } catch (error) {
    await embedded?.stop();
    throw error;
  }
  const database = databaseOpen(url, {
    poolSize: config.poolSize,
    namedStatements: config.namedStatements,
    onError: (error) => log.warn({ err: error }, "a database connection was lost"),
  });
  return {
    ...database,
    url,
    async close() {
      await database.close();
      await embedded?.stop();
    },
  };
}

/**
 * Makes sure that an operator can sign in: with the configured bootstrap token, or on the embedded
 * database with a secret that is generated once into a file of mode 0600.
 * @returns the file that holds the secret; null when there is none.
 */
export async function operatorTokenEnsure(database: Database, config: Config): Promise<string | null> {
  if (config.operatorToken !== null) {
    await apiTokenEnsure(database.db, config.operatorToken, "bootstrap (HOLDFAST_OPERATOR_TOKEN)");
    return null;
  }
  if (config.databaseUrl !== null) return null;
  const path = join(config.dataDir, "operator-token");
  await mkdir(config.dataDir, { recursive: true });
  const secret = await secretFileEnsure(path, secretNew);
  await apiTokenEnsure(database.db, secret, "operator (generated at first start)");
  return path;
}
