import { createHash } from "node:crypto";
import { PrismaPg } from "@prisma/adapter-pg";
import pg from "pg";
import { PrismaClient } from "./prisma/client.ts";

/** The client that every operation and query works with. */
export type Db = PrismaClient;

/** An open database: the client, the pool beneath it, and its end. */
export interface Database {
  readonly db: Db;
  readonly pool: pg.Pool;
  /** Waits for running statements and closes every connection. */
  close(): Promise<void>;
}

/**
 * Opens a pool and a Prisma client on it. Connects on first use.
 * @param options.poolSize connections at the most.
 * @param options.namedStatements see `statementName`.
 * @param options.onError told of errors on idle connections, which are then replaced.
 */
export function databaseOpen(
  url: string,
  options: { poolSize: number; namedStatements: boolean; onError: (error: Error) => void },
): Database {
  const pool = new pg.Pool({
    connectionString: url,
    max: options.poolSize,
    application_name: "holdfast",
    connectionTimeoutMillis: 15_000,
    // Unix sockets and loopback need none; behind a firewall that forgets idle flows it keeps them.
    keepAlive: true,
  });
  pool.on("error", options.onError);
  const adapter = new PrismaPg(
    pool,
    options.namedStatements ? { statementNameGenerator: (query) => statementName(query.sql) } : {},
  );
  const db = new PrismaClient({ adapter });
  direct.set(db, { pool, named: options.namedStatements });
  return {
    db,
    pool,
    async close() {
      await db.$disconnect();
      await pool.end();
    },
  };
}

const direct = new WeakMap<Db, { pool: pg.Pool; named: boolean }>();

/**
 * Runs a statement on the client's own pool, past Prisma, which costs a quarter of a millisecond of
 * processor time each. For the two statements that every order runs (the token's look-up and
 * reserve_machine); errors keep the driver's shape, which database/violation.ts reads as well.
 * @param name of the prepared statement; `text` must be constant.
 */
export async function statementRun<Row extends pg.QueryResultRow>(
  db: Db,
  name: string,
  text: string,
  values: unknown[],
): Promise<Row[]> {
  const found = direct.get(db);
  if (found === undefined) throw new Error("this client was not opened by databaseOpen");
  const { rows } = await found.pool.query<Row>(
    found.named ? { name: statementName(`/* ${name} */${text}`), text, values } : { text, values },
  );
  return rows;
}

const names = new Map<string, string>();

/**
 * The prepared statement's name for a text that begins with a comment holding its name; none for any
 * other. A named statement is parsed and planned once a connection; only constant texts may carry a
 * name, since each is kept on every connection for as long as it lives. The hash keeps two versions
 * of one statement apart during a rolling upgrade behind a pooler.
 */
function statementName(sql: string): string {
  const known = names.get(sql);
  if (known !== undefined) return known;
  const label = /^\s*\/\* (\w+) \*\//.exec(sql)?.[1];
  if (label === undefined) return "";
  const name = `${label}_${createHash("sha256").update(sql).digest("hex").slice(0, 12)}`;
  names.set(sql, name);
  return name;
}
