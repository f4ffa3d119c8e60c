// Keeps a claim alive, and knows when it cannot be trusted any more.
import { setTimeout as delay } from "node:timers/promises";
import type { PublishingConfig } from "../config.ts";
import type { Db } from "../database/client.ts";
import type { Log } from "../logging.ts";
import { type Claim, claimBeatIfOwned } from "./queries/claims.ts";

/** Somebody else may have the deployment now: whoever finds this out stops at once and writes nothing more. */
export class ClaimLost extends Error {
  override readonly name = "ClaimLost";
}

/** A claim that is being kept. */
export interface ClaimKeeper {
  /** Aborted, with ClaimLost, as soon as the claim is known to be lost. */
  readonly lost: AbortSignal;
  /**
   * Makes sure of the claim before something is done outside the database: free while the last beat is
   * young enough, else a beat.
   * @throws ClaimLost
   */
  sure(): Promise<void>;
  /** Ends the beats, and waits for the one that is under way. */
  stop(): Promise<void>;
}

/** The shortest time that a beat is given to be answered. */
const PATIENCE_MS = 5000;
/** Part of the claim time-out for which a beat is trusted; the rest is for clocks that run unequally. */
const TRUSTED = 0.9;

/**
 * Beats every `heartbeatSeconds`. No row changed means lost. A beat that fails is repeated within a
 * second and counts as lost once the last good one is older than the trust window (measured with a
 * clock that goes on while the process is stopped): nobody can have taken over before that.
 * @param config `claimTimeoutSeconds` is what others judge the claim by.
 */
export function claimKeep(
  db: Db,
  config: Pick<PublishingConfig, "heartbeatSeconds" | "claimTimeoutSeconds">,
  log: Log,
  claim: Claim,
): ClaimKeeper {
  const lost = new AbortController();
  const stopped = new AbortController();
  const ended = AbortSignal.any([lost.signal, stopped.signal]);
  const windowMs = config.claimTimeoutSeconds * 1000 * TRUSTED;
  // The claim itself was the first beat.
  let beatAt = performance.now();

  function lose(reason: string): ClaimLost {
    const error = new ClaimLost(reason);
    if (!lost.signal.aborted) lost.abort(error);
    return error;
  }

  /** @returns whether the beat was written. @throws ClaimLost */
  async function beat(): Promise<boolean> {
    const sentAt = performance.now();
    const patience = new AbortController();
    try {
      const owned = await Promise.race([
        claimBeatIfOwned(db, claim),
        delay(Math.max(PATIENCE_MS, beatAt + windowMs - sentAt), "late" as const, {
          signal: patience.signal,
          ref: false,
        }),
      ]);
      if (owned === true) {
        beatAt = sentAt;
        return true;
      }
      if (owned === false) throw lose("the database says that the claim is another's, or over");
      throw new Error("the database did not answer a beat in time");
    } catch (error) {
      if (error instanceof ClaimLost) throw error;
      log.warn({ err: error, deploymentId: claim.deploymentId, attempt: claim.attempt }, "a beat failed");
      if (performance.now() >= beatAt + windowMs) throw lose("no beat could be written for too long");
      return false;
    } finally {
      patience.abort();
    }
  }

  const beating = (async () => {
    let wait = config.heartbeatSeconds * 1000;
    while (!ended.aborted) {
      await delay(wait, undefined, { signal: ended }).catch(() => undefined);
      if (ended.aborted) return;
      const written = await beat().catch(() => false);
      wait = written ? config.heartbeatSeconds * 1000 : Math.min(1000, config.heartbeatSeconds * 500);
    }
  })();

  return {
    lost: lost.signal,
    async sure() {
      lost.signal.throwIfAborted();
      while (performance.now() >= beatAt + windowMs) await beat();
    },
    async stop() {
      stopped.abort();
      await beating;
    },
  };
}
