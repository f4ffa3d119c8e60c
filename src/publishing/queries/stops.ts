// Builds that must not go on: their attempt is over, and the orchestrator is to be told once.
// Twice at once: SKIP LOCKED and the pushed due date let each build be taken by one process at a time;
// whoever has taken it names his try, so that a slow one does not settle what another has taken since.
// A process that dies with one in hand leaves it due again when its lease is over.
import type { Db } from "../../database/client.ts";

/** A build to stop, taken for the length of the lease. */
export interface BuildStop {
  readonly attemptId: string;
  readonly deploymentId: string;
  readonly attempt: number;
  readonly slug: string;
  readonly source: string;
  readonly orchestratorUrl: string;
  /** null: whether a build exists is not known. */
  readonly buildId: string | null;
  /** 1 for the first try. */
  readonly tries: number;
}

/** Takes up to `limit` due builds, each for `leaseSeconds`. */
export async function buildStopsTake(db: Db, limit: number, leaseSeconds: number): Promise<BuildStop[]> {
  return db.$queryRaw<BuildStop[]>`
    UPDATE publish_attempt a
    SET stop_due_at = clock_timestamp() + make_interval(secs => ${leaseSeconds}::integer), stop_tries = a.stop_tries + 1
    WHERE a.id IN (
      SELECT id FROM publish_attempt WHERE stop_due_at <= clock_timestamp()
      ORDER BY stop_due_at FOR UPDATE SKIP LOCKED LIMIT ${limit}::integer)
    RETURNING a.id AS "attemptId", a.deployment_id AS "deploymentId", a.number AS attempt, a.slug, a.source,
              a.orchestrator_url AS "orchestratorUrl", a.build_id AS "buildId", a.stop_tries AS tries`;
}

/** The build does not run any more (or never did). */
export async function buildStopDone(db: Db, stop: BuildStop, buildId: string | null): Promise<void> {
  await db.$executeRaw`
    UPDATE publish_attempt SET stop_due_at = NULL, build_id = coalesce(build_id, ${buildId}::text)
    WHERE id = ${stop.attemptId}::uuid AND stop_tries = ${stop.tries}::integer`;
}

/** The orchestrator could not be told; once more after `seconds`, or never again (null). */
export async function buildStopPut(db: Db, stop: BuildStop, seconds: number | null): Promise<void> {
  await db.$executeRaw`
    UPDATE publish_attempt SET stop_due_at = clock_timestamp() + make_interval(secs => ${seconds}::integer)
    WHERE id = ${stop.attemptId}::uuid AND stop_tries = ${stop.tries}::integer`;
}
