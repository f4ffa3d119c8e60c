// Keeps a claim alive, and knows when it cannot be trusted any more.
import { setTimeout as delay } from "node:timers/promises";
import type { PublishingConfig } from "../config.ts";
import type { Db } from "../database/client.ts";
import type { Log } from "../logging.ts";
import { within } from "../timing.ts";
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
  /** Ends the beats. */
  stop(): Promise<void>;
}

/** How long one beat may stay unanswered; the next one takes another connection. */
const BEAT_MS = 5000;
/** Part of the claim time-out for which a beat is trusted; the rest is for clocks that run unequally. */
const TRUSTED = 0.9;

/**
 * Beats every `heartbeatSeconds`. No row changed means lost. A beat that fails, or is not answered within
 * 5 seconds, is repeated, and counts as lost once the last good one is older than the trust window: before
 * that nobody can have taken the claim for dead. The window is measured with a clock that goes on while
 * the process is stopped by a signal.
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
  let beatAt = claim.askedAt;

  function lose(reason: string): ClaimLost {
    const error = new ClaimLost(reason);
    if (!lost.signal.aborted) lost.abort(error);
    return error;
  }

  /** @returns whether the beat was written. @throws ClaimLost */
  async function beat(): Promise<boolean> {
    const sentAt = performance.now();
    // Whoever was stopped past the window gets one chance.
    const patience = Math.min(BEAT_MS, Math.max(beatAt + windowMs - sentAt, 2000));
    let owned: boolean;
    try {
      owned = await within(claimBeatIfOwned(db, claim), patience, stopped.signal);
    } catch (error) {
      if (stopped.signal.aborted) return false;
      log.warn({ err: error }, "a beat failed");
      if (performance.now() >= beatAt + windowMs) throw lose("no beat could be written for too long");
      return false;
    }
    if (!owned) throw lose("the database says that the claim is another's, or over");
    beatAt = sentAt;
    return true;
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
