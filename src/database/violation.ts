import { setTimeout as delay } from "node:timers/promises";
import { TryAgain } from "../refusal.ts";
import { TooLate } from "../timing.ts";

/** What the database refused: its SQLSTATE and, where it names one, the constraint. */
export interface Violation {
  readonly sqlState: string;
  /** Name of the constraint, index or rule; null where only columns are known. */
  readonly constraint: string | null;
  /** Columns, for adapters that report those instead of a name. */
  readonly fields: readonly string[] | null;
}

/**
 * Finds the driver's report in an error's cause chain. Prisma wraps it differently by API (P2002 for
 * the model API, P2010 for raw SQL) and by version (an index name, a list of fields), so every level
 * is looked at, and nothing is read out of a message.
 * @returns null when the error does not come from the database.
 */
export function violationOf(error: unknown): Violation | null {
  for (let level: unknown = error, depth = 0; isRecord(level) && depth < 10; depth++) {
    const found = driverReport(level);
    if (found !== null) return found;
    const meta = isRecord(level["meta"]) ? level["meta"] : null;
    level = meta?.["driverAdapterError"] ?? level["cause"];
  }
  return null;
}

/** Whether `error` is a violation of exactly this constraint. */
export function violates(error: unknown, constraint: string): boolean {
  return violationOf(error)?.constraint === constraint;
}

/**
 * Whether a statement may succeed if it is sent again as it was: the connection was lost or not to be had,
 * the server is starting, stopping or full, or a lock or a deadlock was in the way.
 */
export function isTransient(error: unknown): boolean {
  if (error instanceof TryAgain || error instanceof TooLate) return true;
  const state = violationOf(error)?.sqlState;
  // The driver's own complaints (no connection, a broken one) have no SQLSTATE.
  if (state === undefined) return !(error instanceof TypeError || error instanceof RangeError);
  return ["08", "40", "53", "57"].includes(state.slice(0, 2)) || state === LOCK_NOT_AVAILABLE;
}

const DEADLOCK = "40P01";
const SERIALIZATION_FAILURE = "40001";
const LOCK_NOT_AVAILABLE = "55P03";
const TRIES = 3;

/**
 * Runs one statement, and again when the database ended it to resolve a deadlock or a serialization
 * failure, which rolled back everything.
 * @throws TryAgain after 3 tries, or at once when a lock was not to be had within lock_timeout; any
 *   other error as it is.
 */
export async function withRetry<T>(statement: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await statement();
    } catch (error) {
      const state = violationOf(error)?.sqlState;
      if (state === LOCK_NOT_AVAILABLE) throw new TryAgain(error);
      if (state !== DEADLOCK && state !== SERIALIZATION_FAILURE) throw error;
      if (attempt === TRIES) throw new TryAgain(error);
      await delay(attempt * 20 * (0.5 + Math.random()));
    }
  }
}

function driverReport(level: Record<string, unknown>): Violation | null {
  const code = level["originalCode"] ?? (typeof level["severity"] === "string" ? level["code"] : undefined);
  if (typeof code !== "string") return null;
  const constraint = level["constraint"];
  if (typeof constraint === "string") return { sqlState: code, constraint, fields: null };
  if (isRecord(constraint)) {
    const index = constraint["index"];
    const fields = constraint["fields"];
    return {
      sqlState: code,
      constraint: typeof index === "string" ? index : null,
      fields: Array.isArray(fields) ? fields.map(String) : null,
    };
  }
  return { sqlState: code, constraint: null, fields: null };
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}
