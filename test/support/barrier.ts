import { setTimeout as delay } from "node:timers/promises";
import type pg from "pg";

/** A meeting point: each caller goes on when `parties` of them have come. */
export function barrier(parties: number): () => Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  let waiting = 0;
  return () => {
    waiting += 1;
    if (waiting === parties) resolve();
    return promise;
  };
}

const PATIENCE_MS = 90_000;

/**
 * Polls a condition, instead of sleeping and hoping.
 * @throws Error with the label when it does not come true in time (90 seconds, unless said otherwise).
 */
export async function waitUntil(
  condition: () => boolean | Promise<boolean>,
  label: string,
  patienceMs = PATIENCE_MS,
): Promise<void> {
  const end = Date.now() + patienceMs;
  // What takes long is not looked at so often: the waiting must not take the processor from what it waits for.
  for (let wait = 5; !(await condition()); wait = Math.min(wait * 1.2, 150)) {
    if (Date.now() > end) throw new Error(`waited in vain until ${label}`);
    await delay(wait);
  }
}

/** Waits until a backend waits for a lock. */
export async function waitUntilBlocked(pool: pg.Pool, pid: number): Promise<void> {
  await waitUntil(async () => {
    const { rowCount } = await pool.query(
      "SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'",
      [pid],
    );
    return rowCount === 1;
  }, `backend ${pid} waits for a lock`);
}
