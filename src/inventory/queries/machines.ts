// Reads of machines with what is true of them now. Locks nothing.
import type { Sight } from "../../access/viewer.ts";
import type { Db } from "../../database/client.ts";
import { Prisma } from "../../database/prisma/client.ts";
import type { Page } from "../../graphql/connection.ts";
import {
  MACHINE_COLUMNS,
  type MachineAvailability,
  type MachineRow,
  type MachineStatus,
  type SiteRow,
} from "../rows.ts";

/** Which machines are wanted; null does not restrict. */
export interface MachineFilter {
  readonly siteCode: string | null;
  readonly manufacturer: string | null;
  readonly status: MachineStatus | null;
  readonly availability: MachineAvailability | null;
  /** Part of the asset tag, the manufacturer, the model, the location or a label; case does not count. */
  readonly search: string | null;
}

/**
 * Machines by id, as far as they may be seen: all of them, or those that stand in a reservation
 * within sight. Others are absent.
 * @param inventory true for viewers of the whole inventory.
 */
export async function machinesByIds(
  db: Db,
  inventory: boolean,
  sight: Sight,
  ids: readonly string[],
): Promise<MachineRow[]> {
  if (sight.kind === "none") return [];
  const organizationId = sight.kind === "organization" ? sight.organizationId : null;
  return db.$queryRaw<MachineRow[]>`
    /* machines_by_ids */
    SELECT ${MACHINE_COLUMNS} FROM machine_now m
    WHERE m.id = ANY(${[...ids]}::uuid[])
      AND (${inventory}::boolean OR EXISTS (
        SELECT FROM reservation r
        WHERE r.machine_id = m.id AND (${organizationId}::uuid IS NULL OR r.organization_id = ${organizationId}::uuid)))`;
}

/** A page of machines in the order of their asset tags, one more than asked for if there are more. */
export async function machinesPage(db: Db, filter: MachineFilter, page: Page<string>): Promise<MachineRow[]> {
  return db.$queryRaw<MachineRow[]>`
    SELECT ${MACHINE_COLUMNS} FROM machine_now m
    WHERE ${matching(filter)}
      AND ${page.after === null ? Prisma.sql`true` : Prisma.sql`m.asset_tag > ${page.after}`}
      AND ${page.before === null ? Prisma.sql`true` : Prisma.sql`m.asset_tag < ${page.before}`}
    ORDER BY m.asset_tag ${page.forward ? Prisma.sql`ASC` : Prisma.sql`DESC`}
    LIMIT ${page.size + 1}`;
}

/** How many machines a filter lets through. */
export async function machinesCount(db: Db, filter: MachineFilter): Promise<number> {
  const rows = await db.$queryRaw<{ total: number }[]>`
    SELECT count(*)::integer AS total FROM machine_now m WHERE ${matching(filter)}`;
  return rows[0]?.total ?? 0;
}

/** Every site, by code. */
export async function sitesList(db: Db): Promise<SiteRow[]> {
  return db.site.findMany({ orderBy: { code: "asc" }, select: { id: true, code: true, name: true } });
}

/** A site's machines, counted by availability. */
export interface FleetFigures {
  readonly siteCode: string;
  readonly machines: number;
  readonly free: number;
  readonly held: number;
  readonly bound: number;
  readonly notReady: number;
}

/** One row a site, by code; sites without machines count zero. */
export async function fleetFigures(db: Db, siteCode: string | null): Promise<FleetFigures[]> {
  return db.$queryRaw<FleetFigures[]>`
    SELECT s.code AS "siteCode",
           count(m.id)::integer AS machines,
           (count(*) FILTER (WHERE m.availability = 'free'))::integer AS free,
           (count(*) FILTER (WHERE m.availability = 'held'))::integer AS held,
           (count(*) FILTER (WHERE m.availability = 'bound'))::integer AS bound,
           (count(*) FILTER (WHERE m.availability = 'not_ready'))::integer AS "notReady"
    FROM site s LEFT JOIN machine_now m ON m.site_id = s.id
    WHERE ${siteCode}::text IS NULL OR s.code = ${siteCode}
    GROUP BY s.code ORDER BY s.code`;
}

function matching(filter: MachineFilter): Prisma.Sql {
  const conditions = [Prisma.sql`true`];
  if (filter.siteCode !== null) conditions.push(Prisma.sql`m.site_code = ${filter.siteCode}`);
  if (filter.manufacturer !== null) conditions.push(Prisma.sql`m.manufacturer = ${filter.manufacturer}`);
  if (filter.status !== null) conditions.push(Prisma.sql`m.status = ${filter.status}`);
  if (filter.availability !== null) conditions.push(Prisma.sql`m.availability = ${filter.availability}`);
  if (filter.search !== null) {
    const pattern = `%${filter.search.replace(/[\\%_]/g, "\\$&")}%`;
    conditions.push(Prisma.sql`(m.asset_tag ILIKE ${pattern} OR m.manufacturer ILIKE ${pattern}
      OR m.model ILIKE ${pattern} OR m.location ILIKE ${pattern}
      OR EXISTS (SELECT FROM unnest(m.labels) AS label WHERE label ILIKE ${pattern}))`);
  }
  return Prisma.join(conditions, " AND ");
}
