// Reads of projects, deployments, attempts and events. Locks nothing.
import type { Sight } from "../../access/viewer.ts";
import type { Db } from "../../database/client.ts";
import { Prisma } from "../../database/prisma/client.ts";
import type { Page } from "../../graphql/connection.ts";
import {
  ATTEMPT_COLUMNS,
  type AttemptRow,
  DEPLOYMENT_COLUMNS,
  type DeploymentRow,
  type EventRow,
  PROJECT_COLUMNS,
  type ProjectRow,
} from "../rows.ts";
import type { DeploymentState } from "../states.ts";

/** Projects by id within sight; others are absent. */
export async function projectsByIds(db: Db, sight: Sight, ids: readonly string[]): Promise<ProjectRow[]> {
  return db.$queryRaw<ProjectRow[]>`
    SELECT ${PROJECT_COLUMNS} FROM project p WHERE p.id = ANY(${[...ids]}::uuid[]) AND ${within(sight)}`;
}

/** Deployments by id, or by their project, within sight; others are absent. */
export async function deploymentsBy(
  db: Db,
  sight: Sight,
  by: "id" | "projectId",
  ids: readonly string[],
): Promise<DeploymentRow[]> {
  const column = by === "id" ? Prisma.sql`d.id` : Prisma.sql`d.project_id`;
  return db.$queryRaw<DeploymentRow[]>`
    SELECT ${DEPLOYMENT_COLUMNS} FROM deployment d JOIN project p ON p.id = d.project_id
    WHERE ${column} = ANY(${[...ids]}::uuid[]) AND ${within(sight)}`;
}

/** Attempts by id within sight; others are absent. */
export async function attemptsByIds(db: Db, sight: Sight, ids: readonly string[]): Promise<AttemptRow[]> {
  return db.$queryRaw<AttemptRow[]>`
    SELECT ${ATTEMPT_COLUMNS} FROM publish_attempt a
    JOIN deployment d ON d.id = a.deployment_id JOIN project p ON p.id = d.project_id
    WHERE a.id = ANY(${[...ids]}::uuid[]) AND ${within(sight)}`;
}

/** Place in the list of projects: name, then id. */
export type ProjectKey = [name: string, id: string];

/** A page of projects within sight by name; one more than asked for if there are more. */
export async function projectsPage(
  db: Db,
  organizationId: string | null,
  page: Page<ProjectKey>,
): Promise<ProjectRow[]> {
  const direction = page.forward ? Prisma.sql`ASC` : Prisma.sql`DESC`;
  return db.$queryRaw<ProjectRow[]>`
    SELECT ${PROJECT_COLUMNS} FROM project p
    WHERE ${ofOrganization(organizationId)}
      AND ${page.after === null ? Prisma.sql`true` : Prisma.sql`(p.name, p.id) > (${page.after[0]}, ${page.after[1]}::uuid)`}
      AND ${page.before === null ? Prisma.sql`true` : Prisma.sql`(p.name, p.id) < (${page.before[0]}, ${page.before[1]}::uuid)`}
    ORDER BY p.name ${direction}, p.id ${direction}
    LIMIT ${page.size + 1}`;
}

/** How many projects the list has. */
export async function projectsCount(db: Db, organizationId: string | null): Promise<number> {
  const rows = await db.$queryRaw<{ total: number }[]>`
    SELECT count(*)::integer AS total FROM project p WHERE ${ofOrganization(organizationId)}`;
  return rows[0]?.total ?? 0;
}

/** A page of a deployment's attempts, newest first; the key is the attempt's number. */
export async function attemptsPage(db: Db, deploymentId: string, page: Page<number>): Promise<AttemptRow[]> {
  const direction = page.forward ? Prisma.sql`DESC` : Prisma.sql`ASC`;
  return db.$queryRaw<AttemptRow[]>`
    SELECT ${ATTEMPT_COLUMNS} FROM publish_attempt a
    WHERE a.deployment_id = ${deploymentId}::uuid
      AND (${page.after}::integer IS NULL OR a.number < ${page.after}::integer)
      AND (${page.before}::integer IS NULL OR a.number > ${page.before}::integer)
    ORDER BY a.number ${direction}
    LIMIT ${page.size + 1}`;
}

/** How many attempts a deployment has had. */
export async function attemptsCount(db: Db, deploymentId: string): Promise<number> {
  const rows = await db.$queryRaw<{ total: number }[]>`
    SELECT count(*)::integer AS total FROM publish_attempt WHERE deployment_id = ${deploymentId}::uuid`;
  return rows[0]?.total ?? 0;
}

/** Whether a slug among these is in use. @returns those that are. */
export async function slugsInUse(db: Db, slugs: readonly string[]): Promise<string[]> {
  const rows = await db.$queryRaw<{ slug: string }[]>`
    SELECT slug FROM app_slug WHERE slug = ANY(${[...slugs]}::text[])`;
  return rows.map((row) => row.slug);
}

/** Where a deployment stands: its last event's number, and whether it builds. */
export interface DeploymentPlace {
  readonly id: string;
  readonly sequence: number;
  readonly state: DeploymentState;
}

/** Where these deployments stand, whoever asks. */
export async function deploymentPlaces(db: Db, ids: readonly string[]): Promise<DeploymentPlace[]> {
  return db.$queryRaw<DeploymentPlace[]>`
    SELECT id, sequence, state FROM deployment WHERE id = ANY(${[...ids]}::uuid[])`;
}

interface EventColumns extends Omit<DeploymentRow, "sequence"> {
  readonly sequence: number;
  readonly message: string;
  readonly at: Date;
}

/** Up to `limit` events after a number, in order, each with the deployment as it was then. */
export async function eventsAfter(
  db: Db,
  deploymentId: string,
  afterSequence: number,
  limit: number,
): Promise<EventRow[]> {
  const rows = await db.$queryRaw<EventColumns[]>`
    SELECT e.deployment_id AS id, d.project_id AS "projectId", e.slug, e.state, e.attempt, e.claimed_at AS "claimedAt",
           e.heartbeat_at AS "heartbeatAt", e.error, e.live_attempt AS "liveAttempt", e.live_slug AS "liveSlug",
           e.live_url AS "liveUrl", e.sequence, e.message, e.at
    FROM deployment_event e JOIN deployment d ON d.id = e.deployment_id
    WHERE e.deployment_id = ${deploymentId}::uuid AND e.sequence > ${afterSequence}::integer
    ORDER BY e.sequence LIMIT ${limit}::integer`;
  return rows.map(({ message, at, ...deployment }) => ({
    sequence: deployment.sequence,
    message,
    at,
    deployment,
  }));
}

function within(sight: Sight): Prisma.Sql {
  switch (sight.kind) {
    case "all":
      return Prisma.sql`true`;
    case "organization":
      return Prisma.sql`p.organization_id = ${sight.organizationId}::uuid`;
    case "none":
      return Prisma.sql`false`;
  }
}

function ofOrganization(organizationId: string | null): Prisma.Sql {
  return Prisma.sql`(${organizationId}::uuid IS NULL OR p.organization_id = ${organizationId}::uuid)`;
}
