import { Prisma } from "../database/prisma/client.ts";
import type { AttemptState, DeploymentState } from "./states.ts";

/** A project as its row stands. */
export interface ProjectRow {
  readonly id: string;
  readonly organizationId: string;
  readonly name: string;
}

/** The columns of ProjectRow, read from project as `p`. */
export const PROJECT_COLUMNS = Prisma.sql`p.id, p.organization_id AS "organizationId", p.name`;

/** A deployment, as its row stands or as an event has kept it. */
export interface DeploymentRow {
  readonly id: string;
  readonly projectId: string;
  readonly slug: string;
  readonly state: DeploymentState;
  readonly attempt: number;
  readonly claimedAt: Date | null;
  readonly heartbeatAt: Date | null;
  readonly error: string | null;
  readonly liveAttempt: number | null;
  readonly liveSlug: string | null;
  readonly liveUrl: string | null;
  /** Number of the last event that this row knows of. */
  readonly sequence: number;
}

/** The columns of DeploymentRow, read from deployment as `d`. */
export const DEPLOYMENT_COLUMNS = Prisma.sql`
  d.id, d.project_id AS "projectId", d.slug, d.state, d.attempt, d.claimed_at AS "claimedAt",
  d.heartbeat_at AS "heartbeatAt", d.error, d.live_attempt AS "liveAttempt", d.live_slug AS "liveSlug",
  d.live_url AS "liveUrl", d.sequence`;

/** One publish of a deployment. */
export interface AttemptRow {
  readonly id: string;
  readonly deploymentId: string;
  readonly number: number;
  readonly state: AttemptState;
  readonly slug: string;
  readonly source: string;
  readonly url: string | null;
  readonly error: string | null;
  readonly startedAt: Date;
  readonly finishedAt: Date | null;
}

/** The columns of AttemptRow, read from publish_attempt as `a`. */
export const ATTEMPT_COLUMNS = Prisma.sql`
  a.id, a.deployment_id AS "deploymentId", a.number, a.state, a.slug, a.source, a.url, a.error,
  a.started_at AS "startedAt", a.finished_at AS "finishedAt"`;

/** A change of a deployment, with the deployment as it was then. */
export interface EventRow {
  readonly sequence: number;
  readonly message: string;
  readonly at: Date;
  readonly deployment: DeploymentRow;
}
