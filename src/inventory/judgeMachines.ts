// What every machine is to an order: read when somebody asks for it or when an order is refused,
// never on the way to a reservation. Locks nothing and writes nothing; a second run reads anew.
// The reasons come from machine_rejections, whose predicate is the allocator's own.
// Not checked here: what the viewer may see (counts are for everybody who may reserve, machines for
// operators).
import type { Db } from "../database/client.ts";
import { Prisma } from "../database/prisma/client.ts";
import type { Page } from "../graphql/connection.ts";
import {
  REJECTION_KINDS,
  REJECTION_REASONS,
  type RejectionCount,
  type RejectionReason,
} from "./rejections.ts";
import { type MachineRequirements, requirementsCanonical } from "./requirements.ts";
import { MACHINE_COLUMNS, type MachineRow } from "./rows.ts";

/** The full list, counted. */
export interface JudgedCounts {
  readonly considered: number;
  /** Machines with no reason against them. */
  readonly eligible: number;
  readonly rejections: readonly RejectionCount[];
}

/** Counts every reason over every machine. */
export async function machinesJudgeCounts(db: Db, requirements: MachineRequirements): Promise<JudgedCounts> {
  const rows = await db.$queryRaw<
    { considered: number; eligible: number; counts: Partial<Record<RejectionReason, number>> | null }[]
  >`
    WITH judged AS MATERIALIZED (
      SELECT machine_rejections(m, r) AS reasons
      FROM machine_now m, jsonb_populate_record(NULL::machine_requirements, ${parameter(requirements)}::jsonb) r
    )
    SELECT (SELECT count(*)::integer FROM judged) AS considered,
           (SELECT count(*)::integer FROM judged WHERE reasons = '{}') AS eligible,
           (SELECT jsonb_object_agg(c.reason, c.machines)
            FROM (SELECT unnest(reasons) AS reason, count(*)::integer AS machines FROM judged GROUP BY 1) c) AS counts`;
  const row = rows[0];
  return {
    considered: row?.considered ?? 0,
    eligible: row?.eligible ?? 0,
    rejections: REJECTION_REASONS.flatMap((reason) => {
      const machines = row?.counts?.[reason];
      return machines === undefined ? [] : [{ reason, kind: REJECTION_KINDS[reason], machines }];
    }),
  };
}

/** A machine, its place among the eligible (null: rejected), and every reason against it. */
export interface JudgedMachine extends MachineRow {
  readonly rank: number | null;
  readonly reasons: readonly RejectionReason[];
  /** An overdue hold still stands on it, which whoever takes it ends. */
  readonly overdue: boolean;
}

/**
 * Place of a candidate in the list, which is the allocator's order: the eligible first, of these the
 * truly free before those that an overdue hold still stands on, then the closest fit.
 */
export type CandidateKey = [
  rejected: boolean,
  overdue: boolean,
  cpuCores: number,
  memoryGib: number,
  storageGib: number,
  id: string,
];

/** Which candidates are wanted; null does not restrict. */
export interface CandidateFilter {
  readonly eligible: boolean | null;
  readonly reason: RejectionReason | null;
}

/** A page of candidates, one more than asked for if there are more. */
export async function machinesJudgePage(
  db: Db,
  requirements: MachineRequirements,
  filter: CandidateFilter,
  page: Page<CandidateKey>,
): Promise<JudgedMachine[]> {
  const place = Prisma.sql`(cardinality(m.reasons) > 0, m.overdue, m.cpu_cores, m.memory_gib, m.storage_gib, m.id)`;
  const direction = page.forward ? Prisma.sql`ASC` : Prisma.sql`DESC`;
  return db.$queryRaw<JudgedMachine[]>`
    ${judged(requirements)}
    SELECT ${MACHINE_COLUMNS}, m.reasons, m.rank, m.overdue FROM ranked m
    WHERE ${wanted(filter)}
      AND ${page.after === null ? Prisma.sql`true` : Prisma.sql`${place} > ${key(page.after)}`}
      AND ${page.before === null ? Prisma.sql`true` : Prisma.sql`${place} < ${key(page.before)}`}
    ORDER BY cardinality(m.reasons) > 0 ${direction}, m.overdue ${direction}, m.cpu_cores ${direction}, m.memory_gib ${direction},
             m.storage_gib ${direction}, m.id ${direction}
    LIMIT ${page.size + 1}`;
}

/** How many candidates a filter lets through. */
export async function machinesJudgeTotal(
  db: Db,
  requirements: MachineRequirements,
  filter: CandidateFilter,
): Promise<number> {
  const rows = await db.$queryRaw<{ total: number }[]>`
    ${judged(requirements)} SELECT count(*)::integer AS total FROM ranked m WHERE ${wanted(filter)}`;
  return rows[0]?.total ?? 0;
}

function judged(requirements: MachineRequirements): Prisma.Sql {
  return Prisma.sql`
    WITH judged AS (
      SELECT m.*, machine_rejections(m, r) AS reasons
      FROM machine_now m, jsonb_populate_record(NULL::machine_requirements, ${parameter(requirements)}::jsonb) r
    ), ranked AS (
      SELECT j.*, CASE WHEN cardinality(j.reasons) = 0 THEN row_number() OVER (
        PARTITION BY cardinality(j.reasons) > 0 ORDER BY j.overdue, j.cpu_cores, j.memory_gib, j.storage_gib, j.id)::integer END AS rank
      FROM judged j
    )`;
}

function wanted(filter: CandidateFilter): Prisma.Sql {
  return Prisma.sql`(${filter.eligible}::boolean IS NULL OR (cardinality(m.reasons) = 0) = ${filter.eligible}::boolean)
    AND (${filter.reason}::text IS NULL OR m.reasons @> ARRAY[${filter.reason}::text])`;
}

function key([rejected, overdue, cpuCores, memoryGib, storageGib, id]: CandidateKey): Prisma.Sql {
  return Prisma.sql`(${rejected}::boolean, ${overdue}::boolean, ${cpuCores}::integer, ${memoryGib}::integer, ${storageGib}::integer, ${id}::uuid)`;
}

function parameter(requirements: MachineRequirements): string {
  return JSON.stringify(requirementsCanonical(requirements));
}
