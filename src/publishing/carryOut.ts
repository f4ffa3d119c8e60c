// Carries out one attempt: asks for the build, follows it, and ends the attempt. Every write names the
// attempt, and whoever finds that it is not his any more stops at once. No transaction is open while the
// build service is asked.
import { setTimeout as delay } from "node:timers/promises";
import pRetry from "p-retry";
import type { PublishingConfig } from "../config.ts";
import type { Db } from "../database/client.ts";
import { violationOf } from "../database/violation.ts";
import { globalIdEncode } from "../graphql/globalId.ts";
import type { Log } from "../logging.ts";
import { ClaimLost, claimKeep } from "./claimKeep.ts";
import { type Orchestrator, OrchestratorRefused, OrchestratorUnreachable } from "./orchestrator.ts";
import {
  type AttemptEnd,
  attemptFinishIfOwned,
  buildAskIfOwned,
  type Claim,
  progressWriteIfOwned,
} from "./queries/claims.ts";

/** What carrying out an attempt needs. */
export interface PublishServices {
  readonly db: Db;
  readonly log: Log;
  readonly config: PublishingConfig;
  readonly orchestrator: Orchestrator;
}

const FAREWELL_MS = 3000;
const FIRST_LOOK_MS = 100;
const LOOK_MS = 2000;

/**
 * Runs an attempt to its end. Never throws: whatever happens is written into the attempt, or into the log
 * when the claim is lost.
 * @param stopping aborted when this process ends: the claim is handed back at once.
 */
export async function attemptCarryOut(
  services: PublishServices,
  claim: Claim,
  stopping: AbortSignal,
): Promise<void> {
  const { db, config } = services;
  const log = services.log.child({ deploymentId: claim.deploymentId, attempt: claim.attempt });
  const keeper = claimKeep(db, config, log, claim);
  const signal = AbortSignal.any([keeper.lost, stopping]);
  try {
    const end = await build({ ...services, log }, claim, keeper.sure, signal).catch((error: unknown) => {
      if (error instanceof ClaimLost) throw error;
      if (keeper.lost.aborted) throw keeper.lost.reason;
      if (stopping.aborted) return handedBack();
      return failure(error, log);
    });
    const patience = stopping.aborted ? AbortSignal.timeout(FAREWELL_MS) : keeper.lost;
    owned(await written(() => attemptFinishIfOwned(db, claim, end), log, patience));
    log.info({ state: end.state, error: end.error }, "attempt over");
  } catch (error) {
    if (error instanceof ClaimLost) log.warn({ reason: error.message }, "claim lost");
    // Nothing stays claimed by it: without beats the attempt is abandoned after the time-out.
    else log.error({ err: error }, "an attempt's end could not be written");
  } finally {
    await keeper.stop();
  }
}

async function build(
  { db, log, config, orchestrator }: PublishServices,
  claim: Claim,
  sure: () => Promise<void>,
  signal: AbortSignal,
): Promise<AttemptEnd> {
  const began = performance.now();
  const write = async (work: () => Promise<boolean>) => owned(await written(work, log, signal));
  await write(() => buildAskIfOwned(db, claim, orchestrator.url));
  const buildId = await orchestrator.buildCreate(buildRequest(claim), "bounded", signal);
  await write(() => progressWriteIfOwned(db, claim, buildId, "The build service has taken the build."));
  let told = "";
  for (let wait = FIRST_LOOK_MS; ; wait = Math.min(wait * 1.5, LOOK_MS)) {
    if (performance.now() - began >= config.buildLimitSeconds * 1000) {
      return failed(
        `The build took longer than ${config.buildLimitSeconds} s, which is the longest it may, and was stopped. Publish again, or find out why it hangs.`,
        true,
      );
    }
    await sure();
    const state = await orchestrator.buildRead(buildId, signal);
    if (state === null) {
      return failed("The build service does not know the build any more. Publish again.", false);
    }
    if (state.state === "succeeded") {
      const url = state.url ?? appUrl(claim.slug, config.appDomain);
      return {
        state: "live",
        error: null,
        url,
        message: `Attempt ${claim.attempt} is live at ${url}.`,
        stopBuild: false,
      };
    }
    if (state.state === "failed") {
      return failed(
        state.error ?? state.message ?? "The build failed, and the build service does not say why.",
        false,
      );
    }
    const message =
      state.message ?? (state.state === "queued" ? "The build waits for its turn." : "The build runs.");
    if (message !== told) {
      await write(() => progressWriteIfOwned(db, claim, null, message));
      told = message;
    }
    await delay(wait, undefined, { signal });
  }
}

/** @throws ClaimLost when a write that names the attempt changed nothing. */
function owned(wrote: boolean): void {
  if (!wrote) throw new ClaimLost("another attempt has begun, or this one was ended");
}

/**
 * Repeats a write while the database is away: a build outlives a failover, as long as the claim can be
 * trusted. A rule that the database holds against it is not repeated.
 */
function written(work: () => Promise<boolean>, log: Log, signal: AbortSignal): Promise<boolean> {
  return pRetry(work, {
    retries: Number.POSITIVE_INFINITY,
    minTimeout: 100,
    maxTimeout: 2000,
    signal,
    shouldRetry: ({ error }) => violationOf(error)?.sqlState.startsWith("23") !== true,
    onFailedAttempt: ({ error }) => log.warn({ err: error }, "a write of a running publish failed"),
  });
}

/** The address of an app. */
export function appUrl(slug: string, domain: string): string {
  return `https://${slug}.${domain}`;
}

/** What the build service is asked for an attempt; the same for every try. */
export function buildRequest(claim: Claim): Parameters<Orchestrator["buildCreate"]>[0] {
  return {
    key: claim.attemptId,
    deploymentId: globalIdEncode("Deployment", claim.deploymentId),
    slug: claim.slug,
    attempt: claim.attempt,
    source: claim.source,
  };
}

function failure(error: unknown, log: Log): AttemptEnd {
  if (error instanceof OrchestratorUnreachable) {
    log.warn({ err: error }, "the build service is out of reach");
    return failed(
      `The build service is out of reach: ${error.message}, several times in a row. Nothing is wrong with the app; publish again later.`,
      error.outcomeUnknown,
    );
  }
  if (error instanceof OrchestratorRefused) {
    log.warn({ err: error }, "the build service refused");
    return failed(
      `The build service did not do as it was asked: ${error.message}. An operator must look into it.`,
      true,
    );
  }
  log.error({ err: error }, "an attempt failed unexpectedly");
  return failed(
    "Something unexpected happened while publishing. Publish again; if it stays, tell the operator.",
    true,
  );
}

function failed(error: string, stopBuild: boolean): AttemptEnd {
  return { state: "failed", error, url: null, message: `The publish failed. ${error}`, stopBuild };
}

function handedBack(): AttemptEnd {
  const error =
    "The server that was publishing was shut down and handed the publish back. Publish again now.";
  return { state: "abandoned", error, url: null, message: error, stopBuild: true };
}
