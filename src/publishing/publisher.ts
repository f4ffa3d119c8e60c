// What one process does about publishing: carries out the attempts that it has claimed, and cleans up
// after processes that died. Any number side by side; what each may write, the database decides.
import { setTimeout as delay } from "node:timers/promises";
import pRetry from "p-retry";
import type { PublishingConfig } from "../config.ts";
import type { Db } from "../database/client.ts";
import { isTransient } from "../database/violation.ts";
import type { Log } from "../logging.ts";
import { within } from "../timing.ts";
import { attemptCarryOut, type PublishServices } from "./carryOut.ts";
import {
  type Claim,
  claimAbandonIfStale,
  claimByAttempt,
  nextStaleInMs,
  staleClaims,
} from "./queries/claims.ts";
import { buildsStop } from "./stopBuilds.ts";

/** Carries out the attempts of this process. */
export interface Publisher {
  /** Begins with an attempt that was just claimed, and returns at once. While the process ends, hands it back. */
  begin(claim: Claim): void;
  /**
   * Finds out whether a claim whose answer got lost was made, and begins with it then. Returns at once.
   * @param askedAt performance.now() before it was asked for.
   */
  adopt(attemptId: string, askedAt: number): void;
  /** Lets `stop` wait for a claim that is being asked for: what it gets is handed back then. */
  asking<T>(claim: Promise<T>): Promise<T>;
  /** Looks for builds to stop, and returns at once. */
  stopBuilds(): void;
  /** Hands every running attempt back, stops their builds (for 5 seconds at the most), and returns then. */
  stop(): Promise<void>;
}

const FAREWELL_MS = 5000;
const ADOPT_MS = 10_000;

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

  const carryOut = (claim: Claim) => attemptCarryOut(services, claim, stopping.signal).then(stopBuilds);

  /** Asks again while the database is away, for as long as the claim would be this process's. */
  async function adopt(attemptId: string, askedAt: number): Promise<void> {
    const signal = AbortSignal.any([stopping.signal, AbortSignal.timeout(config.claimTimeoutSeconds * 500)]);
    try {
      const claim = await pRetry(() => within(claimByAttempt(db, attemptId, askedAt), ADOPT_MS, signal), {
        retries: Number.POSITIVE_INFINITY,
        minTimeout: 250,
        maxTimeout: 2000,
        signal,
        shouldRetry: ({ error }) => isTransient(error),
      });
      if (claim !== null) await carryOut(claim);
    } catch (error) {
      // Nobody carries it out, if it was made: it is abandoned after the time-out.
      log.warn({ err: error, attemptId }, "it could not be found out whether a claim was made");
    }
  }

  return {
    begin: (claim) => track(carryOut(claim)),
    adopt: (attemptId, askedAt) => track(adopt(attemptId, askedAt)),
    asking(claim) {
      track(
        claim.then(
          () => undefined,
          () => undefined,
        ),
      );
      return claim;
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
 * An owner that lives ends its attempt at the build limit; only one that hangs is still there when the
 * claim time-out is over as well.
 * @returns how many it ended.
 */
export async function staleAbandon(
  db: Db,
  config: Pick<PublishingConfig, "claimTimeoutSeconds" | "buildLimitSeconds">,
  log: Log,
): Promise<number> {
  const { claimTimeoutSeconds } = config;
  const limit = hungAfterSeconds(config);
  let abandoned = 0;
  for (const claim of await staleClaims(db, claimTimeoutSeconds, limit)) {
    try {
      if (await claimAbandonIfStale(db, claim, claimTimeoutSeconds, limit)) {
        abandoned += 1;
        log.warn({ ...claim }, "an attempt was abandoned: its owner is silent, or hangs");
      }
    } catch (error) {
      log.error({ err: error, ...claim }, "a stale attempt could not be ended; the next round tries again");
    }
  }
  return abandoned;
}

function hungAfterSeconds(
  config: Pick<PublishingConfig, "claimTimeoutSeconds" | "buildLimitSeconds">,
): number {
  return config.buildLimitSeconds + config.claimTimeoutSeconds;
}

/**
 * Ends stale attempts as soon as the first running claim can be stale, and stops due builds every
 * heartbeat: side by side, so that a build service which does not answer keeps nobody waiting.
 */
export function reaperStart(db: Db, config: PublishingConfig, log: Log): Reaper {
  const stopping = new AbortController();
  const { signal } = stopping;
  const heartbeatMs = config.heartbeatSeconds * 1000;
  /** Cuts the wait of the loop that stops builds short. */
  let due = new AbortController();

  /** Goes round until it is stopped. @param round returns how long to wait for the next one. */
  async function forEver(
    what: string,
    round: () => Promise<{ ms: number; until?: AbortSignal }>,
  ): Promise<void> {
    while (!signal.aborted) {
      const { ms, until } = await round().catch((error: unknown) => {
        log.error({ err: error }, `${what} failed`);
        return { ms: heartbeatMs, until: signal };
      });
      const wake = until === undefined ? signal : AbortSignal.any([signal, until]);
      await delay(ms, undefined, { signal: wake }).catch(() => undefined);
    }
  }

  const running = Promise.all([
    forEver("looking for stale publishes", async () => {
      const abandoned = await staleAbandon(db, config, log);
      if (abandoned > 0) due.abort();
      const next = await nextStaleInMs(db, config.claimTimeoutSeconds, hungAfterSeconds(config));
      // One that is stale still could not be ended; it has its turn with the others.
      return {
        ms: next === null || next <= 0 ? Math.min(heartbeatMs, 5000) : Math.min(heartbeatMs, next + 10),
      };
    }),
    forEver("stopping builds", async () => {
      due = new AbortController();
      const until = due.signal;
      await buildsStop(db, config.orchestratorTimeoutMs, log, signal);
      return { ms: heartbeatMs, until };
    }),
  ]);
  return {
    async stop() {
      stopping.abort(new Error("this process ends"));
      await running;
    },
  };
}
