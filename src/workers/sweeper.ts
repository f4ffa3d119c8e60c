// Expires overdue holds. A cleaner, not a guard: every answer is right without it.
// Twice at once: sweepers share the work; reservation_expire (rack_reservation_expire) passes over what another one has locked
// and judges the deadline again under the lock, so that each hold is expired once.

import { hostname } from "node:os";
import { setTimeout as delay } from "node:timers/promises";
import type { Db } from "../database/client.ts";
import type { Log } from "../logging.ts";

/** What one sweep did. */
export interface SweepReport {
  readonly expired: number;
  /** Holds that could not be expired; each is tried again, on its own, at the next sweep. */
  readonly failed: number;
}

const BATCH = 100;
const KEPT_DAYS = 7;

interface Overdue {
  readonly id: string;
  readonly expiresAt: string;
}

/** The two kinds of hold: how to find what fell due after a place in the order, and how to expire one. */
const KINDS = [
  {
    what: "an overdue hold",
    batch: (db: Db, started: string, last: Overdue) => db.$queryRaw<Overdue[]>`
      SELECT id, expires_at::text AS "expiresAt" FROM reservation
      WHERE state = 'held' AND expires_at <= ${started}::timestamptz
        AND (expires_at, id) > (${last.expiresAt}::timestamptz, ${last.id}::uuid)
      ORDER BY expires_at, id LIMIT ${BATCH}`,
    expire: (db: Db, id: string) => db.$queryRaw<{ outcome: "expired" | "busy" | "not_due" }[]>`
      SELECT reservation_expire(${id}::uuid) AS outcome`,
  },
  {
    what: "an overdue rack hold",
    batch: (db: Db, started: string, last: Overdue) => db.$queryRaw<Overdue[]>`
      SELECT id, expires_at::text AS "expiresAt" FROM rack_reservation
      WHERE state = 'held' AND expires_at <= ${started}::timestamptz
        AND (expires_at, id) > (${last.expiresAt}::timestamptz, ${last.id}::uuid)
      ORDER BY expires_at, id LIMIT ${BATCH}`,
    expire: (db: Db, id: string) => db.$queryRaw<{ outcome: "expired" | "busy" | "not_due" }[]>`
      SELECT rack_reservation_expire(${id}::uuid) AS outcome`,
  },
] as const;

/**
 * Expires every hold of a machine or of rack units that is overdue now, each in a transaction of its own,
 * so that one odd row never stops the rest; then records the sweep.
 */
export async function sweep(db: Db, log: Log, signal?: AbortSignal): Promise<SweepReport> {
  const started = (await db.$queryRaw<{ at: string }[]>`SELECT clock_timestamp()::text AS at`)[0]?.at ?? "";
  const stopped = () => signal?.aborted ?? false;
  let expired = 0;
  let failed = 0;
  for (const kind of KINDS) {
    let last: Overdue = { expiresAt: "-infinity", id: "00000000-0000-0000-0000-000000000000" };
    while (!stopped()) {
      const batch = await kind.batch(db, started, last);
      for (const { id } of batch) {
        if (stopped()) break;
        try {
          const rows = await kind.expire(db, id);
          if (rows[0]?.outcome === "expired") expired += 1;
        } catch (error) {
          failed += 1;
          log.error(
            { err: error, reservationId: id },
            `${kind.what} could not be expired; the next sweep tries again`,
          );
        }
      }
      const end = batch.at(-1);
      if (end === undefined) break;
      last = end;
    }
  }
  await db.$executeRaw`
    WITH old AS (DELETE FROM sweep WHERE finished_at < clock_timestamp() - make_interval(days => ${KEPT_DAYS}::integer))
    INSERT INTO sweep (worker, started_at, expired, failed)
    VALUES (${`${hostname()}:${process.pid}`}, ${started}::timestamptz, ${expired}, ${failed})`;
  return { expired, failed };
}

/** A sweeper that runs until it is stopped. */
export interface Sweeper {
  /** Resolves when the sweep that runs has ended after the row in hand. */
  stop(): Promise<void>;
}

/**
 * Sweeps at once and then every `seconds`. A sweep that fails as a whole (the database is away) is
 * logged, and the next one comes in its turn.
 */
export function sweeperStart(db: Db, seconds: number, log: Log): Sweeper {
  const stopping = new AbortController();
  const running = (async () => {
    while (!stopping.signal.aborted) {
      try {
        const report = await sweep(db, log, stopping.signal);
        log[report.expired + report.failed > 0 ? "info" : "debug"](report, "sweep");
      } catch (error) {
        log.error({ err: error }, "a sweep failed");
      }
      await delay(seconds * 1000, undefined, { signal: stopping.signal }).catch(() => undefined);
    }
  })();
  return {
    async stop() {
      stopping.abort();
      await running;
    },
  };
}

/** What is known of sweeping, over all processes. */
export interface SweeperFigures {
  readonly lastRanAt: Date | null;
  readonly lastExpired: number | null;
  readonly lastFailed: number | null;
  readonly lastWorker: string | null;
  readonly overdue: number;
}

/** Reads when any worker swept last, what it did, and how many holds are overdue now. */
export async function sweeperFigures(db: Db): Promise<SweeperFigures> {
  const rows = await db.$queryRaw<SweeperFigures[]>`
    SELECT s.finished_at AS "lastRanAt", s.expired AS "lastExpired", s.failed AS "lastFailed", s.worker AS "lastWorker",
           (SELECT count(*)::integer FROM reservation WHERE state = 'held' AND expires_at <= statement_timestamp())
           + (SELECT count(*)::integer FROM rack_reservation WHERE state = 'held' AND expires_at <= statement_timestamp()) AS overdue
    FROM (SELECT 1) AS one LEFT JOIN LATERAL (SELECT * FROM sweep ORDER BY finished_at DESC LIMIT 1) s ON true`;
  return rows[0] as SweeperFigures;
}
