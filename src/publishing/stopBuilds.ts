// Tells the build service that builds must not go on: those of attempts that were cancelled or abandoned,
// took too long, or were given up without knowing what became of the build. queries/stops.ts says what happens when this runs twice at once.
import type { Db } from "../database/client.ts";
import type { Log } from "../logging.ts";
import { buildRequest } from "./builds.ts";
import { orchestratorAt } from "./orchestrator.ts";
import { type BuildStop, buildStopDone, buildStopPut, buildStopsTake } from "./queries/stops.ts";

const BATCH = 10;
const MAX_TRIES = 20;
const MAX_WAIT_SECONDS = 300;

/**
 * Stops every build that is due. A build service that does not answer is told again, later and later, at
 * most 20 times.
 * @param signal aborted: no further build is begun with; those that were taken fall due again.
 */
export async function buildsStop(db: Db, timeoutMs: number, log: Log, signal: AbortSignal): Promise<void> {
  // A try is two calls at the most.
  const leaseSeconds = Math.ceil((2 * timeoutMs) / 1000) + 5;
  while (!signal.aborted) {
    const stops = await buildStopsTake(db, BATCH, leaseSeconds);
    await Promise.all(stops.map((stop) => buildStop(db, timeoutMs, log, signal, stop)));
    if (stops.length < BATCH) return;
  }
}

async function buildStop(
  db: Db,
  timeoutMs: number,
  log: Log,
  signal: AbortSignal,
  stop: BuildStop,
): Promise<void> {
  const about = { deploymentId: stop.deploymentId, attempt: stop.attempt, tries: stop.tries };
  const orchestrator = orchestratorAt(stop.orchestratorUrl, timeoutMs);
  try {
    // Whether a build exists is not known: the same key finds it, and makes one only if there was none.
    const buildId = stop.buildId ?? (await orchestrator.buildCreate(buildRequest(stop), signal));
    await orchestrator.buildStop(buildId, signal);
    await buildStopDone(db, stop, buildId);
    log.info({ ...about, buildId }, "build stopped");
  } catch (error) {
    const last = stop.tries >= MAX_TRIES;
    log[last ? "error" : "warn"](
      { ...about, reason: error instanceof Error ? error.message : String(error) },
      last ? "a build could not be stopped and may be running still" : "a build could not be stopped yet",
    );
    await buildStopPut(db, stop, last ? null : Math.min(2 ** stop.tries, MAX_WAIT_SECONDS));
  }
}
