// Carries out one attempt: asks for the build, follows it, and ends the attempt. Every write names the
// attempt, and whoever finds that it is not his any more stops at once. No transaction is open while the
// build service is asked.
import { setTimeout as delay } from "node:timers/promises";
import pRetry from "p-retry";
import type { PublishingConfig } from "../config.ts";
import type { Db } from "../database/client.ts";
import { isTransient } from "../database/violation.ts";
import type { Log } from "../logging.ts";
import { within } from "../timing.ts";
import { appUrl, buildRequest } from "./builds.ts";
import { ClaimLost, claimKeep } from "./claimKeep.ts";
import { type Build, type Orchestrator, OrchestratorFailed } from "./orchestrator.ts";
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

/** How long the hand-back may take when the process ends. */
const FAREWELL_MS = 3000;
const FIRST_LOOK_MS = 100;
const LOOK_MS = 2000;
/** Further tries to ask for a build, a quarter of a second to four seconds apart. */
const RETRIES = 4;
/** How long a write may stay unanswered before it is sent again. */
const WRITE_MS = 10_000;

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
  log.info("attempt begun");
  const signal = AbortSignal.any([keeper.lost, stopping]);
  const farewell = new AbortController();
  const goodbye = () => setTimeout(() => farewell.abort(stopping.reason), FAREWELL_MS).unref();
  if (stopping.aborted) goodbye();
  else stopping.addEventListener("abort", goodbye, { once: true });
  // Whether the build service may be building: what has to be stopped if this ends otherwise.
  const asked = { mayRun: false };
  try {
    const end = await build({ ...services, log }, claim, asked, keeper.sure, signal).catch(
      (error: unknown) => {
        if (error instanceof ClaimLost) throw error;
        if (keeper.lost.aborted) throw keeper.lost.reason;
        return stopping.aborted ? handedBack() : failure(error, asked.mayRun, log);
      },
    );
    const patience = AbortSignal.any([keeper.lost, farewell.signal]);
    owned(await written(() => attemptFinishIfOwned(db, claim, end), log, patience));
    log.info({ state: end.state, error: end.error }, "attempt over");
  } catch (error) {
    if (error instanceof ClaimLost) log.info({ reason: error.message }, "claim lost");
    // Nothing stays claimed by it: without beats the attempt is abandoned after the time-out.
    else log.error({ err: error }, "an attempt's end could not be written");
  } finally {
    stopping.removeEventListener("abort", goodbye);
    await keeper.stop();
  }
}

async function build(
  { db, log, config, orchestrator }: PublishServices,
  claim: Claim,
  asked: { mayRun: boolean },
  sure: () => Promise<void>,
  signal: AbortSignal,
): Promise<AttemptEnd> {
  const began = performance.now();
  const write = async (work: () => Promise<boolean>) => owned(await written(work, log, signal));
  await write(() => buildAskIfOwned(db, claim, orchestrator.url));
  const buildId = await pRetry(
    async () => {
      await sure();
      return orchestrator.buildCreate(buildRequest(claim), signal);
    },
    {
      retries: RETRIES,
      minTimeout: 250,
      maxTimeout: 4000,
      randomize: true,
      signal,
      shouldRetry: ({ error }) => error instanceof OrchestratorFailed && error.transient,
      onFailedAttempt: ({ error }) => {
        asked.mayRun ||= error instanceof OrchestratorFailed && error.outcomeUnknown;
      },
    },
  );
  asked.mayRun = true;
  await write(() => progressWriteIfOwned(db, claim, buildId, "The build service has taken the build."));

  let told = "";
  let reachedAt = performance.now();
  for (let wait = FIRST_LOOK_MS; ; wait = Math.min(wait * 1.5, LOOK_MS)) {
    if (performance.now() - began >= config.buildLimitSeconds * 1000) {
      return failed(
        `The build took longer than ${config.buildLimitSeconds} s, which is the longest it may, and was stopped. Publish again, or find out why it hangs.`,
        true,
      );
    }
    await sure();
    let state: Build | null;
    try {
      state = await orchestrator.buildRead(buildId, signal);
      reachedAt = performance.now();
    } catch (error) {
      // A build outlives a restart of its service.
      const away = performance.now() - reachedAt;
      if (!(error instanceof OrchestratorFailed && error.transient) || away >= config.orchestratorOutageMs)
        throw error;
      log.warn({ err: error }, "the build service could not be asked; the build is looked at again");
      await delay(wait, undefined, { signal });
      continue;
    }
    if (state === null) {
      return failed("The build service does not know the build any more. Publish again.", true);
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
      const why = state.error ?? state.message;
      return failed(why ?? "The build failed, and the build service does not say why.", false);
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
 * trusted. What the database refuses for another reason is a bug, and is thrown.
 */
function written(work: () => Promise<boolean>, log: Log, signal: AbortSignal): Promise<boolean> {
  return pRetry(() => within(work(), WRITE_MS, signal), {
    retries: Number.POSITIVE_INFINITY,
    minTimeout: 100,
    maxTimeout: 2000,
    signal,
    shouldRetry: ({ error }) => isTransient(error),
    onFailedAttempt: ({ error }) => log.warn({ err: error }, "a write of a running publish failed"),
  });
}

function failure(error: unknown, mayRun: boolean, log: Log): AttemptEnd {
  if (error instanceof OrchestratorFailed) {
    log.warn({ err: error }, "the build service failed");
    const stop = mayRun || error.outcomeUnknown;
    return error.transient
      ? failed(
          `The build service is out of reach: ${error.message}, several times in a row. Nothing is wrong with the app; publish again later.`,
          stop,
        )
      : failed(
          `The build service did not do as it was asked: ${error.message}. An operator must look into it.`,
          stop,
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
  const error = "The server that was publishing was shut down and handed the publish back. Publish again.";
  return { state: "abandoned", error, url: null, message: error, stopBuild: true };
}
