// The calls of migration publish_claim, whose header states locks, order, and what happens when each runs
// twice. One statement is one transaction.
import type { Db } from "../../database/client.ts";
import { withRetry } from "../../database/violation.ts";
import { DEPLOYMENT_COLUMNS, type DeploymentRow } from "../rows.ts";

/** The right to carry out one attempt. The attempt's number is the fence: every write names it. */
export interface Claim {
  readonly deploymentId: string;
  readonly attempt: number;
  /** The orchestrator's idempotency key. */
  readonly attemptId: string;
  readonly slug: string;
  readonly source: string;
  /** performance.now() before the claim was asked for: it is at least as young as that. */
  readonly askedAt: number;
}

/** What publish_claim is asked. */
export interface PublishClaimCall {
  /** Id for the attempt, chosen by the caller. */
  readonly attemptId: string;
  readonly projectId: string;
  /** Organization that the caller is limited to; null: none. */
  readonly organizationId: string | null;
  /** In canonical form. */
  readonly slug: string;
  readonly source: string;
  /** Host and process, for people. */
  readonly owner: string;
  readonly claimTimeoutSeconds: number;
  readonly buildLimitSeconds: number;
  readonly coolDownSeconds: number;
}

/** What publish_claim answers. */
export type PublishClaimAnswer =
  | {
      readonly outcome: "claimed";
      readonly deployment: DeploymentRow;
      /** The attempt that was taken from a silent owner, if any. */
      readonly takenOver: number | null;
    }
  | { readonly outcome: "in_progress"; readonly deployment: DeploymentRow }
  | { readonly outcome: "cooling_down"; readonly retryAt: Date; readonly retryAfterMs: number }
  | { readonly outcome: "slug_taken" | "module_disabled" | "not_found" | "unsettled" };

interface ClaimRow extends DeploymentRow {
  readonly outcome: PublishClaimAnswer["outcome"];
  readonly takenOver: number | null;
  readonly retryAt: Date | null;
  readonly retryAfterMs: number | null;
}

/** Takes the right to publish, or says who or what is in the way. @throws TryAgain when the row stays locked. */
export async function publishClaim(db: Db, call: PublishClaimCall): Promise<PublishClaimAnswer> {
  const rows = await withRetry(
    () => db.$queryRaw<ClaimRow[]>`
      SELECT c.outcome, ${DEPLOYMENT_COLUMNS}, c.taken_over AS "takenOver", c.retry_at AS "retryAt",
             greatest(1, ceil(extract(epoch FROM c.retry_at - clock_timestamp()) * 1000))::float8 AS "retryAfterMs"
      FROM publish_claim(${call.attemptId}::uuid, ${call.projectId}::uuid, ${call.organizationId}::uuid, ${call.slug},
                         ${call.source}, ${call.owner}, ${call.claimTimeoutSeconds}::integer,
                         ${call.buildLimitSeconds}::integer, ${call.coolDownSeconds}::integer) c,
           LATERAL (SELECT (c.d).*) d`,
  );
  if (rows[0] === undefined) throw new Error("publish_claim returned no row");
  const { outcome, takenOver, retryAt, retryAfterMs, ...deployment } = rows[0];
  switch (outcome) {
    case "claimed":
      return { outcome, deployment, takenOver };
    case "in_progress":
      return { outcome, deployment };
    case "cooling_down":
      if (retryAt === null || retryAfterMs === null) throw new Error("publish_claim named no instant");
      return { outcome, retryAt, retryAfterMs };
    default:
      return { outcome };
  }
}

/** The claim that was made under this attempt id, if one was and still builds. */
export async function claimByAttempt(db: Db, attemptId: string, askedAt: number): Promise<Claim | null> {
  const rows = await db.$queryRaw<Omit<Claim, "askedAt">[]>`
    SELECT a.deployment_id AS "deploymentId", a.number AS attempt, a.id AS "attemptId", a.slug, a.source
    FROM publish_attempt a WHERE a.id = ${attemptId}::uuid AND a.state = 'building'`;
  return rows[0] === undefined ? null : { ...rows[0], askedAt };
}

/** A beat. @returns false when the claim is lost. */
export async function claimBeatIfOwned(db: Db, { deploymentId, attempt }: Claim): Promise<boolean> {
  const rows = await db.$queryRaw<{ owned: boolean }[]>`
    SELECT publish_beat_if_owned(${deploymentId}::uuid, ${attempt}::integer) AS owned`;
  return rows[0]?.owned === true;
}

/** Notes that this orchestrator is about to be asked for a build. @returns false when the claim is lost. */
export async function buildAskIfOwned(
  db: Db,
  { deploymentId, attempt }: Claim,
  orchestratorUrl: string,
): Promise<boolean> {
  const rows = await withRetry(
    () => db.$queryRaw<{ owned: boolean }[]>`
      SELECT publish_ask_if_owned(${deploymentId}::uuid, ${attempt}::integer, ${orchestratorUrl}) AS owned`,
  );
  return rows[0]?.owned === true;
}

/** Tells what goes on, and keeps the build's id when there is a new one. @returns false when the claim is lost. */
export async function progressWriteIfOwned(
  db: Db,
  { deploymentId, attempt }: Claim,
  buildId: string | null,
  message: string,
): Promise<boolean> {
  const rows = await withRetry(
    () => db.$queryRaw<{ owned: boolean }[]>`
      SELECT publish_progress_if_owned(${deploymentId}::uuid, ${attempt}::integer, ${buildId}::text, ${message}) AS owned`,
  );
  return rows[0]?.owned === true;
}

/** How an owner ends its attempt. */
export interface AttemptEnd {
  readonly state: "live" | "failed" | "abandoned";
  /** For a person; null when live. */
  readonly error: string | null;
  /** Where the build is served, if the orchestrator says so. */
  readonly url: string | null;
  /** The event's message. */
  readonly message: string;
  /** The build may be running still: the orchestrator is to be told. */
  readonly stopBuild: boolean;
}

/** Ends the attempt. @returns false when the claim is lost; then nothing was written. */
export async function attemptFinishIfOwned(
  db: Db,
  { deploymentId, attempt }: Claim,
  end: AttemptEnd,
): Promise<boolean> {
  const rows = await withRetry(
    () => db.$queryRaw<{ owned: boolean }[]>`
      SELECT publish_finish_if_owned(${deploymentId}::uuid, ${attempt}::integer, ${end.state}, ${end.error}::text,
                                     ${end.url}::text, ${end.message}, ${end.stopBuild}::boolean) AS owned`,
  );
  return rows[0]?.owned === true;
}

/** Cancels a running attempt, whoever owns it. @throws TryAgain when the row stays locked. */
export async function publishCancelCall(
  db: Db,
  deploymentId: string,
  organizationId: string | null,
  attempt: number,
): Promise<"cancelled" | "not_running" | "not_found"> {
  const rows = await withRetry(
    () => db.$queryRaw<{ outcome: "cancelled" | "not_running" | "not_found" }[]>`
      SELECT publish_cancel(${deploymentId}::uuid, ${organizationId}::uuid, ${attempt}::integer) AS outcome`,
  );
  return rows[0]?.outcome ?? "not_found";
}

/** A claim that may be stale, as it was read. */
export interface StaleClaim {
  readonly deploymentId: string;
  readonly attempt: number;
}

/**
 * Claims whose owner is silent for longer than the time-out, or builds for longer than the limit (for the
 * reaper: with the time-out on top, since an owner that lives ends its attempt at the limit by itself).
 */
export async function staleClaims(
  db: Db,
  claimTimeoutSeconds: number,
  buildLimitSeconds: number,
): Promise<StaleClaim[]> {
  return db.$queryRaw<StaleClaim[]>`
    SELECT id AS "deploymentId", attempt FROM deployment
    WHERE state = 'building'
      AND (heartbeat_at < clock_timestamp() - make_interval(secs => ${claimTimeoutSeconds}::integer)
        OR claimed_at < clock_timestamp() - make_interval(secs => ${buildLimitSeconds}::integer))
    ORDER BY heartbeat_at`;
}

/** Ends a stale attempt; the database repeats the test. @returns false when it is not stale (any more), or locked. */
export async function claimAbandonIfStale(
  db: Db,
  claim: StaleClaim,
  claimTimeoutSeconds: number,
  buildLimitSeconds: number,
): Promise<boolean> {
  const rows = await db.$queryRaw<{ abandoned: boolean }[]>`
    SELECT publish_abandon_if_stale(${claim.deploymentId}::uuid, ${claim.attempt}::integer,
                                    ${claimTimeoutSeconds}::integer, ${buildLimitSeconds}::integer) AS abandoned`;
  return rows[0]?.abandoned === true;
}

/** Milliseconds until the first running claim goes stale if nobody beats; null when none runs. */
export async function nextStaleInMs(
  db: Db,
  claimTimeoutSeconds: number,
  buildLimitSeconds: number,
): Promise<number | null> {
  const rows = await db.$queryRaw<{ ms: number | null }[]>`
    SELECT (extract(epoch FROM min(least(heartbeat_at + make_interval(secs => ${claimTimeoutSeconds}::integer),
                                         claimed_at + make_interval(secs => ${buildLimitSeconds}::integer)))
                               - clock_timestamp()) * 1000)::float8 AS ms
    FROM deployment WHERE state = 'building'`;
  return rows[0]?.ms ?? null;
}
