// What one process does about publishing: carries out the attempts that it has claimed, and cleans up
// after processes that died. Any number side by side; what each may write, the database decides.
import { setTimeout as delay } from "node:timers/promises";
import type { PublishingConfig } from "../config.ts";
import type { Db } from "../database/client.ts";
import type { Log } from "../logging.ts";
import { attemptCarryOut, type PublishServices } from "./carryOut.ts";
import { type Claim, claimAbandonIfStale, nextStaleInMs, staleClaims } from "./queries/claims.ts";
import { buildsStop } from "./stopBuilds.ts";

/** Carries out the attempts of this process. */
export interface Publisher {
  /** Begins with an attempt that was just claimed, and returns at once. While the process ends, hands it back. */
  begin(claim: Claim): void;
  /** Looks for builds to stop, and returns at once. */
  stopBuilds(): void;
  /** Hands every running attempt back, stops their builds (for 5 seconds at the most), and returns then. */
  stop(): Promise<void>;
}

const FAREWELL_MS = 5000;

export function publisherOpen(services: PublishServices): Publisher {
  const { db, log, config } = services;
  const stopping = new AbortController();
  const closed = new AbortController();
  const running = new Set<Promise<void>>();

  /** Keeps a task in sight until it is over, so that stop() can wait for it. */
  function track(task: Promise<void>): void {
    running.add(task);
    void task.finally(() => running.delete(task));
  }

  function stopBuilds(): void {
    track(
      buildsStop(db, config.orchestratorTimeoutMs, log, closed.signal).catch((error: unknown) => {
        // The reaper comes by again.
        log.warn({ err: error }, "builds could not be stopped");
      }),
    );
  }

  return {
    begin(claim) {
      track(attemptCarryOut(services, claim, stopping.signal).then(stopBuilds));
    },
    stopBuilds,
    async stop() {
      stopping.abort(new Error("this process ends"));
      const farewell = setTimeout(() => closed.abort(new Error("this process ends")), FAREWELL_MS);
      while (running.size > 0) await Promise.all(running);
      clearTimeout(farewell);
    },
  };
}

/** A reaper that runs until it is stopped. */
export interface Reaper {
  /** Resolves when the round that is under way has ended. */
  stop(): Promise<void>;
}

/**
 * Ends the attempts whose owner is dead or hangs, each in a transaction of its own, and only if the
 * database still finds it stale. A cleaner, not a guard: a new publish takes a stale claim over by itself.
 * @returns how many it ended.
 */
export async function staleAbandon(
  db: Db,
  config: Pick<PublishingConfig, "claimTimeoutSeconds" | "buildLimitSeconds">,
  log: Log,
): Promise<number> {
  const { claimTimeoutSeconds, buildLimitSeconds } = config;
  let abandoned = 0;
  for (const claim of await staleClaims(db, claimTimeoutSeconds, buildLimitSeconds)) {
    try {
      if (await claimAbandonIfStale(db, claim, claimTimeoutSeconds, buildLimitSeconds)) {
        abandoned += 1;
        log.warn({ ...claim }, "an attempt was abandoned: its owner is silent, or over the limit");
      }
    } catch (error) {
      log.error({ err: error, ...claim }, "a stale attempt could not be ended; the next round tries again");
    }
  }
  return abandoned;
}

/**
 * Ends stale attempts and stops due builds, as soon as the first running claim can be stale and at
 * least once a heartbeat.
 */
export function reaperStart(db: Db, config: PublishingConfig, log: Log): Reaper {
  const stopping = new AbortController();
  const { signal } = stopping;
  const running = (async () => {
    while (!signal.aborted) {
      let wait = config.heartbeatSeconds * 1000;
      try {
        await staleAbandon(db, config, log);
        await buildsStop(db, config.orchestratorTimeoutMs, log, signal);
        const next = await nextStaleInMs(db, config.claimTimeoutSeconds, config.buildLimitSeconds);
        if (next !== null) wait = Math.min(wait, Math.max(next, 250));
      } catch (error) {
        log.error({ err: error }, "a round of cleaning up publishes failed");
      }
      await delay(wait, undefined, { signal }).catch(() => undefined);
    }
  })();
  return {
    async stop() {
      stopping.abort(new Error("this process ends"));
      await running;
    },
  };
}
